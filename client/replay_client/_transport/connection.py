"""A channel to a server, for calls with deadlines and retries, and for streams.

    connection = Connection("localhost:50051", timeout_s=30.0)
    answer = connection.call(Call("UpdatePriorities", request.SerializeToString()))
    removed = connection.run(reset_table("cartpole", uid))  # an operation, which makes calls
    stream = connection.open_stream("Learn", requests)      # requests: an iterator of bytes, read in the background
    stream.receive()

Messages are bytes in both directions; `replay_proto.framing` builds and reads messages with rows. Failures raise the
types in `replay_client.errors`.

Before the first contact, a call to an unreachable server fails soon, because the address is probably wrong or the
server is not running. Later, calls survive a restart: idempotent ones (`Call.repeat`) are retried until their
deadline. In addition, gRPC itself retries read-only methods (see the policy below). Calls raise
`ServerUnavailableError` if the server is unreachable, and `DeadlineExceededError` if it is slow.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
import weakref
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal, TypeVar

import grpc
from replay_proto.tracing import context_metadata
from replay_proto.v1 import replay_pb2

from replay_client._transport import attempts
from replay_client._transport.address import checked_address, listens
from replay_client._transport.attempts import ANSWERING_S, CHECK_AGAIN_S, CHECKS, Attempts, FirstContact
from replay_client._transport.call import Call, Operation, left_s, limited, run, time_limit
from replay_client._transport.interrupts import blocks_for_s
from replay_client._transport.long_waits import ASK_S, LongWait, explained, first_wait, waited_call
from replay_client._transport.unclosed import ThreadedWork
from replay_client.errors import (
    ClosedError,
    DeadlineExceededError,
    ForkedError,
    InvalidArgumentError,
    ReplayError,
    ServerUnavailableError,
    from_rpc_error,
)
from replay_client.security import Access, Metadata, Tls, Token

T = TypeVar("T")

HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
"""A cheap method that requires no token."""
SERVICE: Final = "replay.v1.ReplayService"
StreamMethod = Literal["Write", "Learn"]

READ_ONLY: Final = (
    "ListTables",
    "DescribeTable",
    "Sample",
    "Read",
    "Stats",
    "Inspect",
    "ListCheckpoints",
    "GetShards",
)
"""Methods that gRPC may retry. A draw by Sample does change counters and a table's random sequence. But if its reply
was lost, these have changed anyway, so Sample is included. A queue delivers the same rows again."""

_RETRY_POLICY: Final = {
    # Only a few quick retries, because at the deadline gRPC does not report why they failed. `Connection` retries, too.
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
CHANNEL_OPTIONS: Final = (
    # The server limits message sizes.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.service_config", _SERVICE_CONFIG),
    # Detect a silently lost peer (unplugged cable, dead machine) within 40 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Receive prefetched batches while the learner computes.
    ("grpc.http2.lookahead_bytes", 64 << 20),
    ("grpc.http2.max_frame_size", (16 << 20) - 1),
    # Process what was received while it is in the CPU's caches. By default, gRPC reads more and more at once.
    ("grpc.experimental.tcp_max_read_buffer_size", 1 << 19),
    # Do not share connections between clients.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True)
class SessionOptions:
    """The options of a client, without its token."""

    address: str
    """The server's address."""
    timeout_s: float
    """Default time limit of calls, in seconds."""
    wait_for_server_s: float
    """Time limit for the first contact, in seconds; 0: one attempt."""
    tls: Tls | None
    """Certificates for TLS; None: plain text."""
    same_host: bool
    """Whether to copy rows from the files of a server on this host."""

    @classmethod
    def checked(
        cls, address: str, *, timeout_s: float, wait_for_server_s: float | None, tls: Tls | None, same_host: bool
    ) -> SessionOptions:
        """Check the arguments of `ReplayClient`."""
        own_s = time_limit("timeout_s", timeout_s, 0.0)
        if not own_s:
            raise InvalidArgumentError.of_field("timeout_s", "a positive number of seconds", repr(timeout_s))
        return cls(
            address=checked_address(address),
            timeout_s=own_s,
            wait_for_server_s=time_limit("wait_for_server_s", wait_for_server_s, own_s),
            tls=tls,
            same_host=same_host,
        )


class MessageStream:
    """A bidirectional gRPC stream.

    A thread of its own receives for the main thread, and for calls with time limits, which gRPC does not have for
    single messages. In the main thread, signal handlers raise exceptions such as `KeyboardInterrupt` anywhere. Inside
    gRPC, they could leave a lock taken, on which the next call would wait forever.
    """

    def __init__(self, connection: Connection, call: Iterator[bytes]) -> None:
        """Take over a call that has been opened."""
        self._connection = connection
        self._call: Any = call
        self._replies: SimpleQueue[bytes | BaseException] | None = None  # filled by the thread

    def receive(self, timeout_s: float = math.inf) -> bytes:
        """See `replay_client._transport.answered_stream.Stream`."""
        if self._replies is None:
            if timeout_s == math.inf and threading.current_thread() is not threading.main_thread():
                return self._received()
            self._replies = SimpleQueue()
            threading.Thread(
                target=self._receive_all, args=(self._replies,), name="replay-receives", daemon=True
            ).start()
        reply = _taken(self._replies, time.monotonic() + timeout_s)
        if isinstance(reply, BaseException):
            self._replies.put(reply)  # the next call raises it, too
            raise reply
        return reply

    def _receive_all(self, replies: SimpleQueue[bytes | BaseException]) -> None:
        """Receive until the stream ends; runs in the thread."""
        try:
            while True:
                replies.put(self._received())
        except BaseException as error:
            replies.put(error)

    def _received(self) -> bytes:
        try:
            message: bytes = next(self._call)
            return message
        except StopIteration:
            raise ServerUnavailableError(f"the replay server at {self._connection.address} ended the stream") from None
        except grpc.RpcError as error:
            raise self._connection.failure(error) from None

    def cancel(self) -> None:
        """Cancel the stream; `receive` raises from then on."""
        self._call.cancel()


def _taken(replies: SimpleQueue[T], deadline: float) -> T:
    """Wait for the next element; raise `DeadlineExceededError` at the deadline."""
    while True:
        left = left_s(deadline)
        try:
            return replies.get(timeout=blocks_for_s(left))
        except Empty:
            if left == 0:
                raise DeadlineExceededError("timed out") from None


class _Process:
    """This process. Asking the system for its id would add 0.15 us to each row that an actor appends."""

    forks = 0
    """How many forks lie between this process and the one that was started."""

    @classmethod
    def forked(cls) -> None:
        """Count a fork, in the child."""
        cls.forks += 1


os.register_at_fork(after_in_child=_Process.forked)


class ConnectionBase:
    """Base class of connections with threads and on event loops, without I/O."""

    def __init__(self, options: SessionOptions, token: Token | None = None) -> None:
        self.access = Access(token, options.tls)
        """The token and certificates."""
        self.address = options.address
        self.timeout_s = options.timeout_s
        self.kept_alive: list[object] = []
        """Objects that must live as long as this connection."""
        self._options = options
        self._forks = _Process.forks
        self.is_closed = False
        """Whether `close` was called."""
        self._was_reached = False

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the one that opened the connection."""
        return self._forks != _Process.forks

    def check_not_forked(self) -> None:
        """Raise `ForkedError` in a child of the process that opened the connection."""
        if self._forks != _Process.forks:
            raise ForkedError("this client was created before a fork; create one in the child, or use spawn")

    def check_usable(self) -> None:
        """Raise `ForkedError` like `check_not_forked`, and `ClosedError` after `close`."""
        self.check_not_forked()
        if self.is_closed:
            raise ClosedError("this client is closed")

    def deadline(self, field: str, limit_s: float | None) -> float:
        """Convert a caller's time limit to a deadline; see `replay_client._transport.call`."""
        return time.monotonic() + time_limit(field, limit_s, self.timeout_s)

    def failure(self, error: grpc.RpcError) -> ReplayError:
        """Convert the error of a failed call."""
        if self.is_closed:
            return ClosedError("this client was closed during the call")
        return self.access.explained(from_rpc_error(error, self.address))

    def _metadata(self) -> Metadata:
        """The metadata of a call that begins now."""
        return self.access.metadata() + context_metadata()

    def _first_contact(self) -> FirstContact:
        options = self._options
        return FirstContact(self.address, options.wait_for_server_s, time.monotonic(), is_tls=options.tls is not None)


class Connection(ConnectionBase):
    """A channel to one server, for use in the process that created it."""

    def __init__(self, options: SessionOptions, token: Token | None = None) -> None:
        super().__init__(options, token)
        self.works: weakref.WeakSet[ThreadedWork] = weakref.WeakSet()
        """Work in the background over this connection, which is finished before the client is closed."""
        self._earlier: list[grpc.Channel] = []  # with older certificates: their calls and streams run on
        self._open()

    def move(self, options: SessionOptions) -> None:
        """Connect to another address. Calls and streams that have begun remain with the old one until they end."""
        self._options, self.address = options, options.address
        self._open()

    def has_answered(self, *, within_s: float) -> bool:
        """Whether a call that ended in the last ``within_s`` seconds was successful."""
        return time.monotonic() - self._answered_at < within_s

    def _open(self) -> None:
        self._answered_at = -math.inf
        self._channel = self.access.open_channel(self.address, CHANNEL_OPTIONS)
        # In one tuple, because another thread must not combine a channel with methods of an earlier channel.
        self._methods: tuple[grpc.Channel, dict[str, grpc.UnaryUnaryMultiCallable[bytes, bytes]]] = (self._channel, {})

    def run(self, operation: Operation[T]) -> T:
        """Run an operation."""
        return run(operation, self.call)

    def ask(self, operation: Operation[T], *, timeout_s: float) -> T:
        """Run an operation whose answer is optional, without retries and without waiting for the first contact.

        ``timeout_s`` is the time limit of each call in seconds, instead of its own.
        """

        def call_once(call: Call) -> bytes:
            self.check_usable()
            limit_s = sum(limited(replace(call, timeout_s=timeout_s, margin_s=0.0), timeout_s))
            return self._attempt(call.method, call.request, time.monotonic() + limit_s, wait_for_ready=False)

        return run(operation, call_once)

    def is_cut(self, error: Exception, lasted_s: float) -> bool:
        """Whether a call or stream ended only because something cut it off, and the server is there; asks the server.

        ``lasted_s`` is how long it has lasted.
        """
        if not may_be_cut(error, lasted_s) or self.is_closed:
            return False
        check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(HEALTH_CHECK)
        for _ in range(CHECKS):
            with suppress(grpc.RpcError, ValueError):  # the latter after the channel was closed
                check(b"", timeout=ANSWERING_S, wait_for_ready=False)
                return True
            time.sleep(CHECK_AGAIN_S)
        return False

    def first_wait(self, table: str, kinds: Collection[str]) -> replay_pb2.WaitStats | ReplayError | None:
        """Ask what inserts or draws of a table wait for; see `replay_client._transport.long_waits`.

        Returns the error if the server does not answer.
        """
        try:
            return self.ask(first_wait(table, kinds), timeout_s=ASK_S)
        except (ServerUnavailableError, DeadlineExceededError) as error:
            return error
        except ReplayError:  # the token may write, but not see figures
            return None

    def call(self, call: Call) -> bytes:
        """Make a call and wait for the reply."""
        with LongWait(f"the call {call.method} to {self.address}", partial(self.explain, call)):
            return self._call(call)

    def explain(self, call: Call, waited_s: float) -> str:
        """Say what a call waits for; see `LongWait`."""
        table, kinds = waited_call(call)
        if not kinds:
            return f"waited {waited_s:g} s for the answer; the call ends at its time limit"
        return explained(table, waited_s, self.first_wait(table, kinds))

    def _call(self, call: Call) -> bytes:
        limit_s, margin_s = limited(call, self.timeout_s)
        self.reach()
        deadline = time.monotonic() + limit_s
        if not call.repeat:
            return self._attempt(call.method, call.request, deadline + margin_s, wait_for_ready=True)
        tries = Attempts(deadline)
        began = time.monotonic()
        while True:
            try:
                return self._attempt(call.method, call.request, deadline + margin_s, wait_for_ready=False)
            except ReplayError as error:
                try:
                    pause_s = tries.failed(error, time.monotonic())
                except ServerUnavailableError as away:
                    if self.is_cut(away, time.monotonic() - began):
                        raise cut_off(away) from None
                    raise
            time.sleep(pause_s)

    def reach(self) -> None:
        """Wait for the first contact with the server; later calls return immediately.

        Raises:
            ServerUnavailableError: no server answers; the message says what to do.
        """
        self.check_usable()
        if self._was_reached:
            return
        contact = self._first_contact()
        while (refusal := self._knock(contact)) is not None:
            pause_s = contact.pause_s(refusal, time.monotonic())
            if pause_s is None:
                raise self.access.explained(contact.given_up(refusal, listens=listens(self.address)))
            time.sleep(pause_s)
        self._was_reached = True

    def open_stream(self, method: StreamMethod, requests: Iterator[bytes]) -> MessageStream:
        """Open a bidirectional stream; see `MessageStream`."""
        self.check_usable()
        self._renew()
        multi: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(rpc_path(method))
        return MessageStream(self, multi(requests, metadata=self._metadata()))

    def close(self) -> None:
        """Close the channel, which ends running calls and streams. Does nothing in a forked child."""
        was_closed, self.is_closed = self.is_closed, True  # first, so that running calls know why they end
        if not was_closed and not self.is_forked:
            for channel in (*self._earlier, self._channel):
                channel.close()

    def _renew(self) -> None:
        """Open a new channel if the certificates were renewed: a channel keeps those that it was opened with."""
        if self.access.is_renewed():
            self._earlier.append(self._channel)
            self._open()

    def _knock(self, contact: FirstContact) -> ServerUnavailableError | None:
        """Check whether a server answers. Return None if one does, or else an error."""
        self._renew()
        check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(HEALTH_CHECK)
        try:
            check(b"", timeout=contact.limit_s(time.monotonic()), wait_for_ready=False)
        except grpc.RpcError as error:
            self.check_usable()
            return contact.refusal(error.code(), error.details() or "")
        except ValueError:  # raised by gRPC after the channel was closed
            self.check_usable()
            raise
        return None

    def _attempt(self, method: str, request: bytes, deadline: float, *, wait_for_ready: bool) -> bytes:
        self._renew()
        channel, methods = self._methods
        unary = methods.get(method)
        if unary is None:
            unary = methods[method] = channel.unary_unary(rpc_path(method))
        try:
            answer = unary(
                request,
                timeout=left_s(deadline),
                metadata=self._metadata(),
                wait_for_ready=wait_for_ready,
            )
        except grpc.RpcError as error:
            raise self.failure(error) from None
        except ValueError:  # raised by gRPC after the channel was closed
            self.check_usable()
            raise
        self._answered_at = time.monotonic()
        return answer


def may_be_cut(error: Exception, lasted_s: float) -> bool:
    """Whether a call or stream that ended with this error may have been cut off while the server was there."""
    return isinstance(error, ServerUnavailableError) and not error.reason and lasted_s >= attempts.CUT_AFTER_S


def cut_off(error: ServerUnavailableError) -> DeadlineExceededError:
    """Return the error of a call that was cut off at its time limit while the server was there."""
    return DeadlineExceededError(f"the call waited until its time limit, and was cut off: {error}")


def rpc_path(method: str) -> str:
    """Return the path of an RPC of the service."""
    return f"/{SERVICE}/{method}"
