"""The channel to a server: calls with deadlines, streams, and what is repeated while the server is away.

    connection = Connection("localhost:50051", timeout_s=30.0)
    answer = connection.call("UpdatePriorities", request.SerializeToString(), repeat=True)
    stream = connection.open_stream("Learn", requests)      # an iterator of bytes, consumed in the background
    stream.receive()

Messages are bytes here, in both directions: those that carry rows are built and read in place by
`replay_proto.framing`. Failures are raised as the types in `replay_client.errors`.

Before the first contact a server that cannot be reached is an error soon: the address is wrong, or nobody started it.
What rides through a restart later: `call(..., repeat=True)` goes on repeating until its deadline, and is for what may
be applied twice without harm; methods that change nothing are repeated by gRPC itself before that (the policy below).
A server that cannot be reached is told apart from one that is slow: the former is `ServerUnavailableError`, the latter
`DeadlineExceededError`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import grpc
from google.protobuf.message import Message

from replay_client._transport.address import how_to_start, listens
from replay_client._transport.time_limits import left_s, time_limit
from replay_client.errors import (
    ClosedError,
    DeadlineExceededError,
    ForkedError,
    ReplayError,
    ServerUnavailableError,
    from_rpc_error,
)
from replay_client.security import Tls, open_channel, token_metadata

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

FIRST_CONTACT_S: Final = 1.5
"""How long a client waits for a server before the first contact, unless it is told otherwise."""
_KNOCK_S: Final = 0.5
"""How long one attempt at the first contact may take at least."""
_HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
"""Open to everybody, and cheap."""
SERVICE: Final = "replay.v1.ReplayService"
Method = Literal[
    "CreateTable",
    "DropTable",
    "ListTables",
    "DescribeTable",
    "ResetTable",
    "Insert",
    "Sample",
    "Read",
    "UpdatePriorities",
    "Stats",
    "Checkpoint",
    "ListCheckpoints",
    "VerifyCheckpoint",
    "Inspect",
]
StreamMethod = Literal["Write", "Learn"]
Metadata = tuple[tuple[str, str], ...]

READ_ONLY: Final[tuple[Method, ...]] = (
    "ListTables",
    "DescribeTable",
    "Sample",
    "Read",
    "Stats",
    "Inspect",
    "ListCheckpoints",
)
"""What gRPC may repeat by itself. A draw counts as one: all it moves are counters and, in a seeded table, the
sequence of draws, which a call whose answer was lost has moved as well."""

_RETRY_POLICY: Final = {
    # Few and soon: gRPC does not say why it is still trying when the deadline comes, and `Connection` goes on after it.
    "maxAttempts": 3,
    "initialBackoff": "0.01s",
    "maxBackoff": "0.05s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
_SERVICE_CONFIG: Final = json.dumps(
    {
        "methodConfig": [
            {"name": [{"service": SERVICE, "method": method} for method in READ_ONLY], "retryPolicy": _RETRY_POLICY}
        ]
    }
)
_CHANNEL_OPTIONS: Final = (
    # The server's own bounds decide what is too large.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.service_config", _SERVICE_CONFIG),
    # A server that restarts is back within seconds: do not wait longer than that between attempts.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # how long one attempt may take
    ("grpc.max_reconnect_backoff_ms", 500),
    # A peer that vanished without a word (a pulled cable, a lost machine) is noticed within 40 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Batches asked for ahead arrive while the learner computes, not only once it reads them.
    ("grpc.http2.lookahead_bytes", 64 << 20),
    ("grpc.http2.max_frame_size", (16 << 20) - 1),
    # A proxy for the web is not on the way to a replay server, whatever the environment says.
    ("grpc.enable_http_proxy", 0),
    # Two clients in one process have a connection each.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True)
class Backoff:
    """How long to pause before trying again: longer each time, and never the same for all who wait."""

    first_s: float = 0.05
    """The first pause."""
    longest_s: float = 0.5
    """No pause is longer."""
    factor: float = 2.0
    """How much longer each pause is than the one before."""
    jitter: float = 0.25
    """Each pause is drawn from 1 - jitter to 1 + jitter times its length."""

    def pauses_s(self, rng: random.Random) -> Iterator[float]:
        """The pauses, without end."""
        pause_s = self.first_s
        while True:
            yield pause_s * rng.uniform(1 - self.jitter, 1 + self.jitter)
            pause_s = min(pause_s * self.factor, self.longest_s)


class MessageStream:
    """One bidirectional stream, while it lasts. All that this library needs of a transport for streams."""

    def __init__(
        self, channel: grpc.Channel, address: str, method: StreamMethod, requests: Iterator[bytes], metadata: Metadata
    ) -> None:
        """Open it.

        Args:
            channel: to the server.
            address: the server's.
            method: name of the RPC.
            requests: messages to send; consumed in a thread of its own until it ends, which ends our side.
            metadata: says who calls.
        """
        multi: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(_path(method))
        self._address = address
        self._call = multi(requests, metadata=metadata)

    def receive(self) -> bytes:
        """Wait for the next answer.

        Raises:
            ReplayError: the stream has ended; `ServerUnavailableError` if that was nobody's wish.
        """
        try:
            return next(self._call)
        except StopIteration:
            raise ServerUnavailableError(f"the replay server at {self._address} ended the stream") from None
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._address) from None

    def cancel(self) -> None:
        """End it from here; `receive` raises from then on."""
        self._call.cancel()


class Connection:
    """A channel to one server, for the process that made it."""

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float,
        wait_for_server_s: float = FIRST_CONTACT_S,
        token: str | None = None,
        tls: Tls | None = None,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """Open it; nothing is sent yet, and the server need not be there.

        Args:
            address: ``host:port``, or another form that gRPC knows.
            timeout_s: how long a call may take that does not say so itself, in seconds.
            wait_for_server_s: how long the first contact may take, in seconds; 0: one attempt.
            token: says who calls, where the server wants to know.
            tls: how to encrypt; None: not at all.
            backoff: pauses between attempts.
            clock: seconds that never go back.
            rng: for the jitter of the pauses.

        Raises:
            InvalidArgumentError: for a token that cannot be one, or a file of certificates that cannot be read.
        """
        self.address = address
        self.timeout_s = timeout_s
        self.wait_for_server_s = wait_for_server_s
        self.backoff = backoff or Backoff()
        self.clock = clock
        self.rng = rng or random.Random()
        self._process = os.getpid()
        self._closed = False
        self._is_encrypted = tls is not None
        self._was_reached = False
        self._metadata = token_metadata(token)
        self._channel = open_channel(address, tls, _CHANNEL_OPTIONS)
        self._unary: dict[str, grpc.UnaryUnaryMultiCallable[bytes, bytes]] = {}

    @property
    def authorization(self) -> str:
        """What calls carry to say who they are from; empty: nothing."""
        return dict(self._metadata).get("authorization", "")

    @property
    def is_forked(self) -> bool:
        """Whether this process is a child of the one that opened the connection."""
        return os.getpid() != self._process

    def check_usable(self) -> None:
        """Refuse a connection that cannot work any more.

        Raises:
            ForkedError: in a child of the process that opened it.
            ClosedError: after `close`.
        """
        if self.is_forked:
            raise ForkedError("this client was created before a fork; create one in the child, or use spawn")
        if self._closed:
            raise ClosedError("this client is closed")

    def deadline(self, field: str, limit_s: float | None) -> float:
        """When a time limit that a caller gave is over, by `clock`; see `replay_client._transport.time_limits`.

        Args:
            field: the parameter's name.
            limit_s: the limit in seconds; None: the connection's own.

        Raises:
            InvalidArgumentError: for an invalid time limit.
        """
        return self.clock() + time_limit(field, limit_s, self.timeout_s)

    def call_message(
        self, method: Method, request: Message, response: type[M], *, timeout_s: float | None = None, repeat: bool
    ) -> M:
        """`call` for messages without rows."""
        return response.FromString(self.call(method, request.SerializeToString(), timeout_s=timeout_s, repeat=repeat))

    def call(
        self, method: Method, request: bytes, *, timeout_s: float | None = None, margin_s: float = 0.0, repeat: bool
    ) -> bytes:
        """Send a request and wait for its answer.

        Args:
            method: name of the RPC.
            request: its wire form.
            timeout_s: how long it may take, in seconds, a wait for a server that is away included; see
                `replay_client._transport.time_limits`.
            margin_s: how much longer to wait for the answer of a server that is there, in seconds.
            repeat: whether to send it again when the server could not be reached or went away meanwhile.

        Raises:
            InvalidArgumentError: for an invalid time limit.
            ReplayError: of the type that fits.
        """
        limit_s = time_limit("timeout_s", timeout_s, self.timeout_s)
        self.reach()
        deadline = self.clock() + limit_s
        if not repeat:
            return self._attempt(method, request, deadline + margin_s, wait_for_ready=True)
        return self._repeated(method, request, deadline, margin_s)

    def reach(self) -> None:
        """Make sure that a server was there once; only the first call waits for it.

        Raises:
            ServerUnavailableError: nobody answers; the message says where, and what to start.
            ReplayError: as `check_usable`.
        """
        self.check_usable()
        if self._was_reached:
            return
        deadline = self.clock() + self.wait_for_server_s
        warn_at = self.clock() + FIRST_CONTACT_S
        for pause_s in self.backoff.pauses_s(self.rng):
            refusal = self._knock(deadline)
            if refusal is None:
                self._was_reached = True
                return
            if self.clock() + pause_s >= deadline:
                raise refusal if not listens(self.address) else no_answer(self.address, refusal)
            if self.clock() >= warn_at:
                log.warning("%s; waiting", refusal)
                warn_at = math.inf
            time.sleep(pause_s)

    def open_stream(self, method: StreamMethod, requests: Iterator[bytes]) -> MessageStream:
        """Open a bidirectional stream; see `MessageStream`.

        Raises:
            ClosedError: the connection is closed.
            ForkedError: it belongs to another process.
        """
        self.check_usable()
        return MessageStream(self._channel, self.address, method, requests, self._metadata)

    def close(self) -> None:
        """Close the channel; calls and streams that are under way end. Does nothing in a forked child."""
        if not self._closed and not self.is_forked:
            self._channel.close()
        self._closed = True

    def _repeated(self, method: Method, request: bytes, deadline: float, margin_s: float) -> bytes:
        """Try until it works, is refused, or the deadline has come."""
        away: ServerUnavailableError | None = None
        for attempts, pause_s in enumerate(self.backoff.pauses_s(self.rng), start=1):
            try:
                return self._attempt(method, request, deadline + margin_s, wait_for_ready=False)
            except ServerUnavailableError as error:
                away = error
            except DeadlineExceededError as error:
                # If the server was away before, that is what took so long.
                raise (away if away is not None and not error.reason else error) from None
            except ReplayError as error:
                error.attempts = attempts
                raise
            if self.clock() + pause_s >= deadline:
                break
            time.sleep(pause_s)
        assert away is not None
        raise away

    def _knock(self, deadline: float) -> ServerUnavailableError | None:
        """Ask whether somebody is there: any answer will do. None if so."""
        left = left_s(deadline, self.clock())
        timeout_s = FIRST_CONTACT_S if left is None else max(left, _KNOCK_S)
        check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(_HEALTH_CHECK)
        try:
            check(b"", timeout=timeout_s, wait_for_ready=False)
        except grpc.RpcError as error:
            self.check_usable()
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return no_server(self.address, error.details() or "", is_encrypted=self._is_encrypted)
        except ValueError:  # how gRPC says that the channel was closed
            self.check_usable()
            raise
        return None

    def _attempt(self, method: Method, request: bytes, deadline: float, *, wait_for_ready: bool) -> bytes:
        unary = self._unary.get(method)
        if unary is None:
            unary = self._unary[method] = self._channel.unary_unary(_path(method))
        try:
            return unary(
                request,
                timeout=left_s(deadline, self.clock()),
                metadata=self._metadata,
                wait_for_ready=wait_for_ready,
            )
        except grpc.RpcError as error:
            if self._closed:
                raise ClosedError("this client was closed during the call") from None
            raise from_rpc_error(error, self.address) from None
        except ValueError:  # how gRPC says that the channel was closed
            self.check_usable()
            raise


def no_server(address: str, detail: str, *, is_encrypted: bool) -> ServerUnavailableError:
    """Nobody answers at an address; ``detail`` is what gRPC says about it."""
    over = " over TLS" if is_encrypted else ""
    error = ServerUnavailableError(
        f"no replay server answers at {address}{over}; {how_to_start(address)}", metadata={"detail": detail}
    )
    error.add_note(f"gRPC: {detail}")
    return error


def no_answer(address: str, refusal: ServerUnavailableError) -> ServerUnavailableError:
    """Somebody listens at an address and says nothing: a server takes its port before it restores its tables."""
    error = ServerUnavailableError(
        f"no replay server answers at {address} yet. If one is still starting there, retry or increase "
        "wait_for_server_s; otherwise another program is using the port",
        metadata=refusal.metadata,
    )
    error.add_note(f"gRPC: {refusal.metadata['detail']}")
    return error


def _path(method: str) -> str:
    return f"/{SERVICE}/{method}"
