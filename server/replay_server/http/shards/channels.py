"""Connections to the servers of a service, over which this server asks for statistics with readers' tokens.

This server uses TLS for them exactly if it uses TLS itself. So a token that reached it encrypted leaves it encrypted.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from replay_proto.access.watched import UnusableFileError, Watched
from replay_proto.channels import open_loop_channel
from replay_proto.v1 import replay_pb2

from replay_server.http.histograms import FRACTIONS

ASK_S: Final = 2.0
"""Time limit for an answer. A server that takes longer is away."""
_METHOD: Final = "/replay.v1.ReplayService/Stats"
_REQUEST: Final = replay_pb2.StatsRequest(fractions=FRACTIONS)
_OPTIONS: Final = (
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 32 << 20),
)


@dataclass(frozen=True)
class PeerTls:
    """Files, all PEM, for connections to other servers."""

    ca: Path | None
    """CA of their certificates; None: gRPC's default public CAs."""
    certificate: Path
    """This server's certificate, which it presents if another server requires one."""
    key: Path
    """The private key of the certificate."""

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files.

        Raises:
            UnusableFileError: a file cannot be used.
        """
        try:
            if self.ca is not None:
                ssl.create_default_context(cafile=self.ca)  # gRPC would report an error only when it connects
            root = None if self.ca is None else self.ca.read_bytes()
            return grpc.ssl_channel_credentials(root, self.key.read_bytes(), self.certificate.read_bytes())
        except (OSError, ValueError) as error:
            paths = f"{self.ca or 'public CAs'}, {self.certificate}, {self.key}"
            raise UnusableFileError(f"{paths}: expected PEM files, got: {error}") from error


class Channels:
    """One connection to each server, shared by all readers."""

    def __init__(self, tls: PeerTls | None) -> None:
        """Connect to nothing yet.

        Args:
            tls: files for TLS, read again when they change; None: no TLS.

        Raises:
            UnusableFileError: a file cannot be used.
        """
        paths = () if tls is None else [path for path in (tls.ca, tls.certificate, tls.key) if path is not None]
        self._credentials = None if tls is None else Watched(paths, tls.credentials)
        self._open: dict[str, grpc.aio.Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def stats(self, address: str, token: str | None) -> replay_pb2.StatsResponse:
        """Ask the server at an address for the statistics of all tables that the token may read.

        Raises:
            AioRpcError: there is no answer, or the server refuses the token.
            DecodeError: the answer is not a StatsResponse.
        """
        if self._credentials is not None and self._credentials.refresh():
            self.keep(())
        # Without a deserializer, because gRPC would return None for an answer that it cannot deserialize.
        ask: grpc.aio.UnaryUnaryMultiCallable[replay_pb2.StatsRequest, bytes] = self._channel(address).unary_unary(
            _METHOD, replay_pb2.StatsRequest.SerializeToString
        )
        # No server of a service accepts another token, because gRPC's headers are printable ASCII.
        is_sent = token is not None and token.isascii() and token.isprintable()
        metadata = (("authorization", f"Bearer {token}"),) if is_sent else ()
        return replay_pb2.StatsResponse.FromString(await ask(_REQUEST, timeout=ASK_S, metadata=metadata))

    def keep(self, addresses: Collection[str]) -> None:
        """Close the connections to all other addresses, once running calls have ended."""
        for address in self._open.keys() - {*addresses}:
            closing = asyncio.create_task(self._open.pop(address).close(ASK_S))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections."""
        self.keep(())
        await asyncio.gather(*self._closing)

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._open:
            credentials = None if self._credentials is None else self._credentials.value
            self._open[address] = open_loop_channel(address, credentials, _OPTIONS)
        return self._open[address]
