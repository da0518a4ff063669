"""Calls to a server on this host over its unix-domain socket: the messages are those of gRPC, the cost is a fraction.

    local = LocalSocket(description, nonce)
    stream = local.open_stream("Learn")                 # None while nobody answers there: use gRPC
    answer = local.call("Sample", request, timeout_s=30.0)

The contract's `LocalHello` says what is sent. Whatever fails here other than by a refusal fails silently: the caller
goes on over gRPC, which tells what is the matter if that fails too.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from google.rpc import status_pb2
from replay_proto.frames import FrameError, FrameKind, FrameParser, frame_head
from replay_proto.v1 import replay_pb2

from replay_client.description import TableDescription
from replay_client.errors import DeadlineExceededError, ReplayError, ServerUnavailableError, from_status

LocalMethod = Literal["Learn", "Sample", "UpdatePriorities"]

_RECEIVE_BYTES: Final = 1 << 18
_LONGEST_BYTES: Final = (1 << 32) - 1
"""The server's own bounds decide what is too large."""
_HELLO_TIMEOUT_S: Final = 2.0
_RETRY_S: Final = 1.0
"""Where nobody answered, nobody is asked again for so long."""


class LocalStream:
    """One connection, for calls of one method. One thread sends, one receives; any may cancel."""

    def __init__(self, link: socket.socket) -> None:
        """Take over a connected socket; `LocalSocket` makes these."""
        self._link = link
        self._parser = FrameParser(_LONGEST_BYTES)
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))

    def send(self, message: bytes) -> None:
        """Send a message. If the connection is gone, `receive` will say so."""
        try:
            self._link.sendall(frame_head(len(message)) + message)
        except OSError:
            self.cancel()

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Wait for the next answer.

        Args:
            timeout_s: how long to wait, in seconds; None: for as long as the connection lasts.

        Raises:
            ServerUnavailableError: the connection has ended.
            DeadlineExceededError: there was no answer in time; the connection is of no use any more.
            ReplayError: the request was refused.
        """
        try:
            self._link.settimeout(timeout_s)
            while (taken := self._parser.take()) is None:
                size = self._link.recv_into(self._buffer)
                if not size:
                    raise ConnectionResetError("the server ended it")
                self._parser.feed(self._buffer[:size])
        except TimeoutError:
            self.cancel()
            raise DeadlineExceededError("there was no answer in time") from None
        except (OSError, FrameError) as error:
            self.cancel()
            raise ServerUnavailableError(f"the connection to the server broke: {error}") from None
        kind, content = taken
        if kind is FrameKind.STATUS:
            raise from_status(status_pb2.Status.FromString(content))
        return content

    def cancel(self) -> None:
        """End it from here; `receive` raises from then on, also where it waits already."""
        with suppress(OSError):  # it has ended
            self._link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the socket. Only when nobody receives."""
        self._link.close()


class LocalSocket:
    """The way to one table on the server's host. Threads may share one."""

    def __init__(self, table: TableDescription, nonce: bytes, authorization: str = "") -> None:
        """Know where to go.

        Args:
            table: the table.
            nonce: what the file in its directory holds.
            authorization: says who calls, where the server wants to know.
        """
        self._path = Path(table.socket)
        self._table = table
        self._nonce = nonce
        self._authorization = authorization
        self._idle: defaultdict[LocalMethod, list[LocalStream]] = defaultdict(list)
        self._lock = threading.Lock()
        self._not_before_s = 0.0

    def open_stream(self, method: LocalMethod) -> LocalStream | None:
        """Connect; None while nobody answers there, or we are not wanted."""
        if time.monotonic() < self._not_before_s:
            return None
        hello = replay_pb2.LocalHello(
            method=method,
            table=self._table.name,
            table_uid=self._table.uid,
            nonce=self._nonce,
            authorization=self._authorization,
        )
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        stream = LocalStream(link)
        try:
            _connect(link, self._path)
            stream.send(hello.SerializeToString())
            stream.receive(_HELLO_TIMEOUT_S)
        except (OSError, ReplayError):
            self._not_before_s = time.monotonic() + _RETRY_S
            stream.close()
            return None
        return stream

    def call(self, method: LocalMethod, request: bytes, timeout_s: float) -> bytes | None:
        """Make one call.

        Args:
            method: which.
            request: its wire form; it may be applied twice without harm.
            timeout_s: how long it may take.

        Returns:
            The answer; None if there is nobody to ask, or the connection broke: ask over gRPC.

        Raises:
            ReplayError: the request was refused, or took too long.
        """
        with self._lock:
            idle = self._idle[method]
            stream = idle.pop() if idle else None
        stream = stream or self.open_stream(method)
        if stream is None:
            return None
        try:
            stream.send(request)
            answer = stream.receive(timeout_s)
        except (ServerUnavailableError, DeadlineExceededError) as error:
            if error.reason:  # the server itself says so, and the connection is whole
                self._keep(method, stream)
                raise
            stream.close()
            if isinstance(error, DeadlineExceededError):
                raise
            return None
        except ReplayError:
            self._keep(method, stream)
            raise
        except BaseException:
            stream.close()  # an answer may still come that nobody waits for
            raise
        self._keep(method, stream)
        return answer

    def close(self) -> None:
        """Close the connections that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, defaultdict(list)
        for streams in idle.values():
            for stream in streams:
                stream.close()

    def _keep(self, method: LocalMethod, stream: LocalStream) -> None:
        with self._lock:
            self._idle[method].append(stream)


def _connect(link: socket.socket, path: Path) -> None:
    """Connect to a socket whose path may be longer than a socket's address."""
    link.settimeout(_HELLO_TIMEOUT_S)
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        link.connect(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
