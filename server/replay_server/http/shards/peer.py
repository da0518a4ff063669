"""The newest figures of one server, as one reader may see them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from replay_proto.v1 import replay_pb2

from replay_server.http.history import Counts, Meter
from replay_server.http.shards.channels import Channels

log = logging.getLogger(__name__)

_TLS_FAILURES: Final = {
    "certificate has expired": "its certificate has expired",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted, see --tls-ca",
    "Hostname Verification Check failed": "its certificate is for another name",
    "WRONG_VERSION_NUMBER": "it does not use TLS",
}
"""What is wrong, by what gRPC says of it. The first match counts."""


class Away(NamedTuple):
    """Why a server has no figures."""

    reason: str
    """What is wrong, in words."""
    since_s: float
    """Since when it has had none, by the monotonic clock; the reason may have changed since."""


class Peer:
    """A server of the service."""

    def __init__(self, channels: Channels, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Know nothing yet.

        Args:
            channels: connections to the servers.
            address: where the server is.
            clock: monotonic clock in seconds.
        """
        self.address = address
        self.answer: replay_pb2.StatsResponse | None = None
        """The newest answer; None while the server is away, and before its first answer."""
        self.tables: Mapping[str, replay_pb2.TableStats] = {}
        """The tables of the last answer, by name. They are kept while the server is away."""
        self.rates: Mapping[bytes, Counts] = {}
        """Rates of the answer's tables since the answer before it, by uid."""
        self.away: Away | None = None
        """Why the server is away; None if it is not, or is not known to be."""
        self._channels = channels
        self._clock = clock
        self._meter = Meter(clock)
        self._asking: asyncio.Task[None] | None = None

    def ask(self, token: str | None, service_uid: bytes) -> None:
        """Ask for new figures in the background, unless the last answer has not come yet.

        Args:
            token: the token to ask with; None: no token.
            service_uid: uid of the shard map that the server must have.
        """
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(token, service_uid))

    def stop(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self, token: str | None, service_uid: bytes) -> None:
        try:
            answer = await self._channels.stats(self.address, token)
        except grpc.aio.AioRpcError as error:
            self._is_away(_reason(error, token), error.details() or error.code().name)
            return
        except DecodeError as error:
            self._is_away("its answer is malformed", str(error))
            return
        if answer.shards.uid != service_uid:
            other = "it belongs to another service" if answer.HasField("shards") else "it has lost its tables"
            self._is_away(
                other, f"expected a shard map with uid {service_uid.hex()}, got {answer.shards.uid.hex() or 'none'}"
            )
            return
        self.answer, self.away = answer, None
        self.tables = {table.table.config.name: table for table in answer.tables}
        self.rates = self._meter.rates(
            {each.table.uid: Counts(each.table.inserted, each.sampled, each.updated) for each in answer.tables}
        )

    def _is_away(self, reason: str, details: str) -> None:
        self.answer, self.rates = None, {}
        self._meter.rates({})
        if self.away is None or self.away.reason != reason:
            log.warning("the live page is without the tables of %s: %s: %s", self.address, reason, details)
            self.away = Away(reason, self._clock() if self.away is None else self.away.since_s)


def _reason(error: grpc.aio.AioRpcError, token: str | None) -> str:
    if error.code() == grpc.StatusCode.UNAUTHENTICATED:
        return "it requires a token" if token is None else "it does not know this token"
    if error.code() == grpc.StatusCode.PERMISSION_DENIED:
        return "this token may read no table there"
    details = error.details() or ""
    return next((reason for sign, reason in _TLS_FAILURES.items() if sign in details), "no answer")
