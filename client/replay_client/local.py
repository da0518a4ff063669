"""Calls to a server on this host over its unix-domain socket: the messages are those of gRPC, the cost is a fraction.

    local = LocalSocket(description, nonce)
    stream = local.open_stream("Learn")                 # None while nobody answers there: use gRPC
    answer = local.call("Sample", request, timeout_s=30.0)

The contract's `LocalHello` says what is sent. Whatever fails here other than by a refusal fails silently: the caller
goes on over gRPC, which tells what is the matter if that fails too.
"""

from __future__ import annotations

import os
import select
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
"""How long a server may take to answer a hello."""
_RETRY_S: Final = 1.0
"""Where we were not answered, or not wanted, we do not ask again for so long. A socket that nobody listens on is tried
each time: that costs next to nothing, and a server that came back is found at once."""
_SEND_PATIENCE_S: Final = 0.05
"""For so long a server is waited for that does not take in what it is sent."""


class LocalStream:
    """One connection, for calls of one method. One thread sends and receives; any may cancel."""

    def __init__(self, link: socket.socket) -> None:
        """Take over a connected socket; `LocalSocket` makes these."""
        link.setblocking(False)
        self._link = link
        self._parser = FrameParser(_LONGEST_BYTES)
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._unsent = memoryview(b"")

    def send(self, message: bytes) -> None:
        """Send a message. If the connection is gone, `receive` will say so.

        What the server does not take in soon is kept, and sent by the next `receive` or `send`: both ends could wait
        for each other otherwise, the server for us to take in its answers.
        """
        frame = frame_head(len(message)) + message
        self._unsent = memoryview(b"".join((self._unsent, frame)) if self._unsent else frame)
        deadline = time.monotonic() + _SEND_PATIENCE_S
        while self._send_some() and self._wait(select.POLLOUT, deadline):
            pass

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Wait for the next answer.

        Args:
            timeout_s: how long to wait, in seconds; None: for as long as the connection lasts.

        Raises:
            ServerUnavailableError: the connection has ended.
            DeadlineExceededError: there was no answer in time; the connection is of no use any more.
            ReplayError: the request was refused.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while (taken := self._parser.take()) is None:
                events = select.POLLIN | (select.POLLOUT if self._send_some() else 0)
                if not self._wait(events, deadline):
                    raise TimeoutError
                self._receive_some()
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
        """End it and let go of the socket. Only when nobody receives."""
        self.cancel()
        self._link.close()

    def _send_some(self) -> bool:
        """Send as much as the server takes in now; whether something is left."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._link.send(self._unsent) :]
        except BlockingIOError:
            return True
        except OSError:
            # The server has ended it. Why, it may have said before.
            self._unsent = memoryview(b"")
        return False

    def _receive_some(self) -> None:
        try:
            size = self._link.recv_into(self._buffer)
        except BlockingIOError:  # woken to send
            return
        if not size:
            raise ConnectionResetError("the server ended it")
        self._parser.feed(self._buffer[:size])

    def _wait(self, events: int, deadline: float | None) -> bool:
        """Wait for the socket; False if the deadline comes first."""
        poll = select.poll()
        poll.register(self._link, events)
        left_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        return bool(poll.poll(left_ms))


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
        self._is_closed = False

    def open_stream(self, method: LocalMethod, timeout_s: float = _HELLO_TIMEOUT_S) -> LocalStream | None:
        """Connect; None while nobody answers there within `timeout_s`, or we are not wanted."""
        if time.monotonic() < self._not_before_s:
            return None
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        stream = None
        try:
            _connect(link, self._path, timeout_s)
            stream = LocalStream(link)
            stream.send(self._hello(method))
            stream.receive(timeout_s)
        except (FileNotFoundError, ConnectionRefusedError):
            link.close()
            return None
        except (OSError, ReplayError):
            self._not_before_s = time.monotonic() + _RETRY_S
            link.close()
            return None
        except BaseException:
            link.close()
            raise
        return stream

    def call(self, method: LocalMethod, request: bytes, timeout_s: float) -> bytes | None:
        """Make one call.

        Args:
            method: which.
            request: its wire form; it may be applied twice without harm.
            timeout_s: how long it may take.

        Returns:
            The answer; None if there is nobody to ask, the connection broke, or the server is shutting down: ask over
            gRPC, which waits for it to come back.

        Raises:
            ReplayError: the request was refused, or took too long.
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            idle = self._idle[method]
            stream = idle.pop() if idle else None
        stream = stream or self.open_stream(method, min(timeout_s, _HELLO_TIMEOUT_S))
        if stream is None:
            return None
        is_whole = False  # once no answer may come any more that nobody waits for
        try:
            stream.send(request)
            answer = stream.receive(max(0.0, deadline - time.monotonic()))
            is_whole = True
        except ServerUnavailableError:
            return None
        except ReplayError as error:
            is_whole = bool(error.reason)
            raise
        finally:
            if is_whole:
                self._keep(method, stream)
            else:
                stream.close()
        return answer

    def close(self) -> None:
        """Close the connections that nobody uses, and those in use after their calls."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, defaultdict(list)
        for streams in idle.values():
            for stream in streams:
                stream.close()

    def _hello(self, method: LocalMethod) -> bytes:
        return replay_pb2.LocalHello(
            method=method,
            table=self._table.name,
            table_uid=self._table.uid,
            nonce=self._nonce,
            authorization=self._authorization,
        ).SerializeToString()

    def _keep(self, method: LocalMethod, stream: LocalStream) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle[method].append(stream)
                return
        stream.close()


def _connect(link: socket.socket, path: Path, timeout_s: float) -> None:
    """Connect to a socket whose path may be longer than a socket's address."""
    link.settimeout(timeout_s)
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        link.connect(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
