"""Makes calls to one table, and opens streams for its learners and writers, over a unix-domain socket.

Client and server must share a host:

    stream = calls.open_stream("Learn")                 # None if no server answers: use gRPC
    answer = calls.call("Sample", request, timeout_s=30.0)

Only refusals, timeouts and `LocalCalls.close` raise errors. After any other failure, the caller falls back to gRPC,
which reports the problem if it also fails.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeGuard, get_args

from google.protobuf.message import DecodeError
from replay_proto.frames import Content
from replay_proto.tracing import Metadata, context_metadata
from replay_proto.v1 import replay_pb2

from replay_client._transport.frame_stream import FrameStream
from replay_client.errors import ClosedError, DeadlineExceededError, ReplayError, ServerUnavailableError
from replay_client.results.description import TableDescription

FrameMethod = Literal["Learn", "Read", "Sample", "UpdatePriorities", "UpdateRows", "Write"]
"""RPCs that the local socket supports."""

_METHODS: Final = frozenset(get_args(FrameMethod))

HELLO_TIMEOUT_S: Final = 2.0
"""Time limit for connecting and for the reply to a hello."""
SEND_BYTES: Final = 4 << 20
"""Requested size of a connection's send buffer, which the kernel may limit. A writer sends blocks of 1 MiB."""
RETRY_S: Final = 1.0
"""Pause after a failed attempt before the next one."""


def is_local(method: str) -> TypeGuard[FrameMethod]:
    """Whether the local socket supports this RPC."""
    return method in _METHODS


class LocalAddress:
    """The path of a server's socket, and the first message to send there."""

    def __init__(self, table: TableDescription, authorization: Callable[[], str] = str) -> None:
        """Prepare the first message to the server that describes the table like this.

        ``authorization`` is as for `Shortcuts`.
        """
        self._path = Path(table.socket)
        self._owner_id = table.owner_id
        self._hello = replay_pb2.FrameHello(table=table.name, table_uid=table.uid, owner_id=table.owner_id)
        self._authorization = authorization

    def hello(self, method: FrameMethod | Literal[""], context: Metadata) -> bytes:
        """Return the first message of a connection for calls of this method in this trace context.

        With an empty method, the server only says which one it is.
        """
        hello = replay_pb2.FrameHello(method=method, trace_context=dict(context), authorization=self._authorization())
        hello.MergeFrom(self._hello)
        return hello.SerializeToString()

    def check_welcome(self, welcome: Content) -> None:
        """Check the answer to the first message.

        Raises:
            ServerUnavailableError: another server has answered, or another program.
        """
        try:
            said = replay_pb2.FrameWelcome.FromString(bytes(welcome)).owner_id
        except DecodeError:
            said = b""
        if not said or said != self._owner_id:
            raise ServerUnavailableError(f"another server than that of the table listens at {self._path}")

    @contextmanager
    def short_path(self) -> Iterator[str]:
        """Provide a path to the socket that fits into a socket address, even if the socket's own path is too long."""
        folder = os.open(self._path.parent, os.O_PATH | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{folder}/{self._path.name}"
        finally:
            os.close(folder)


class _Idle(NamedTuple):
    """A connection for calls, between two calls."""

    stream: FrameStream
    context: Metadata


class LocalCalls:
    """Calls to one table on the server's host. Thread-safe."""

    def __init__(self, address: LocalAddress) -> None:
        """Do not connect yet."""
        self.address = address
        """The server's socket."""
        self._idle: defaultdict[FrameMethod, list[_Idle]] = defaultdict(list)
        self._streams: weakref.WeakSet[FrameStream] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._not_before_s = 0.0
        self._is_closed = False

    def move(self, address: LocalAddress) -> None:
        """Use another address from now on. Open streams stay where they are."""
        with self._lock:
            self.address, self._not_before_s = address, 0.0
            idle, self._idle = self._idle, defaultdict(list)
        for kept in chain.from_iterable(idle.values()):
            kept.stream.close()

    def is_accepted_at(self, address: LocalAddress, within_s: float) -> bool:
        """Whether the server that the address is meant for listens there, and answers within so many seconds."""
        try:
            _greeted(address, "", (), time.monotonic() + within_s).close()
        except (OSError, ReplayError):
            return False
        return True

    def open_stream(self, method: FrameMethod, timeout_s: float = HELLO_TIMEOUT_S) -> FrameStream | None:
        """Open a stream, which `close` will cancel; return None if the server refuses, or does not answer in time."""
        stream = self._connected(method, context_metadata(), timeout_s)
        if stream is not None:
            with self._lock:
                if self._is_closed:
                    stream.close()
                    return None
                self._streams.add(stream)
        return stream

    def call(self, method: FrameMethod, request: bytes, timeout_s: float) -> Content | None:
        """Make one call, which must be idempotent.

        Returns:
            The reply. None if there is no server, the connection broke, or the server is shutting down. Use gRPC then,
            which waits until the server is back.

        Raises:
            ClosedError: `close` was called during the call.
            ReplayError: the request was refused, or took longer than ``timeout_s`` seconds.
        """
        deadline = time.monotonic() + timeout_s
        context = context_metadata()
        # If there is no answer, leave half of the time to gRPC.
        stream = self._kept(method, context) or self.open_stream(method, min(timeout_s / 2, HELLO_TIMEOUT_S))
        if stream is None:
            return None
        is_whole = False  # whether the stream can be reused, because no late reply can arrive on it
        try:
            stream.send(request)
            answer = stream.receive(max(0.0, deadline - time.monotonic()))
            is_whole = True
        except ServerUnavailableError:
            if self._is_closed:
                raise ClosedError("this client was closed during the call") from None
            return None
        except ReplayError as error:
            is_whole = bool(error.reason)
            raise
        finally:
            self._put_back(method, _Idle(stream, context), is_whole=is_whole)
        return answer

    def close(self) -> None:
        """Cancel streams and calls, even those that other threads wait for, and close idle connections."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, defaultdict(list)
            for stream in self._streams:
                stream.cancel()
        for kept in chain.from_iterable(idle.values()):
            kept.stream.close()

    def _connected(self, method: FrameMethod, context: Metadata, timeout_s: float) -> FrameStream | None:
        """Open a connection; return None if the server refuses, or does not answer within ``timeout_s`` seconds."""
        if self._is_closed or time.monotonic() < self._not_before_s:
            return None
        try:
            stream = _greeted(self.address, method, context, time.monotonic() + timeout_s)
            stream.is_alive = partial(self._is_alive, method)
            return stream
        except (FileNotFoundError, ConnectionRefusedError):
            return None  # another attempt is nearly free, and finds a restarted server immediately
        except (OSError, ReplayError):
            self._not_before_s = time.monotonic() + RETRY_S
            return None

    def _is_alive(self, method: FrameMethod) -> bool:
        """Whether the server answers the hello of another connection, even if only with a refusal."""
        try:
            _greeted(self.address, method, (), time.monotonic() + HELLO_TIMEOUT_S).close()
        except ReplayError as error:  # some of them are OSErrors, too
            return not isinstance(error, ServerUnavailableError | DeadlineExceededError)
        except OSError:
            return False
        return True

    def _kept(self, method: FrameMethod, context: Metadata) -> FrameStream | None:
        """Take an idle connection. If it was opened in another trace context, close it and return None."""
        with self._lock:
            idle = self._idle[method]
            if not idle:
                return None
            kept = idle.pop()
            if kept.context == context:
                return kept.stream
            kept.stream.close()
            return None

    def _put_back(self, method: FrameMethod, used: _Idle, *, is_whole: bool) -> None:
        """Keep a call's connection for the next call if no late reply can arrive on it; otherwise, close it."""
        with self._lock:  # so that `close` cancels no other socket that reuses its descriptor
            if is_whole and not self._is_closed:
                self._idle[method].append(used)
            else:
                used.stream.close()


def _greeted(
    address: LocalAddress, method: FrameMethod | Literal[""], context: Metadata, deadline: float
) -> FrameStream:
    """Open a connection, send the hello, and wait until the server accepts it."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connected.settimeout(max(0.0, deadline - time.monotonic()))
        with address.short_path() as path:
            connected.connect(path)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        stream = FrameStream(connected)
        stream.send(address.hello(method, context))
        address.check_welcome(stream.receive(max(0.0, deadline - time.monotonic())))
    except BaseException:
        connected.close()
        raise
    return stream
