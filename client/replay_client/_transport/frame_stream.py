"""A connection to the server's local socket, which carries the same messages as gRPC at a fraction of the cost.

    stream = FrameStream(connected)                  # a connected socket
    stream.send(request)
    answer = stream.receive()                   # replies come in the order of the requests

See `FrameHello` in the protocol. For the pending requests of an `AnsweredStream`, there are two ways to send: a learner
sends its short requests itself (`DirectFrames`), and a writer has a thread that sends long ones (`SentFrames`).
"""

from __future__ import annotations

import logging
import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from google.rpc import status_pb2
from replay_proto.frames import Content, FrameError, FrameKind, FrameParser, frame_head

from replay_client._transport.call import left_s
from replay_client._transport.interrupts import NOTICED_S, blocks_for_s
from replay_client._transport.pending import PendingRequests
from replay_client.errors import DeadlineExceededError, ServerUnavailableError, from_status

log = logging.getLogger(__name__)

LONGEST_BYTES: Final = (1 << 32) - 1
"""Maximum length of a received frame: unlimited in practice, because the server limits its messages."""
_LONGEST_WAIT_MS: Final = (1 << 31) - 1
"""Longest time limit that the system call `poll` accepts."""
SILENCE_S: Final = 10.0
"""How long `receive` waits for a reply before it checks whether the server still answers anybody."""
_MOST_PARTS: Final = os.sysconf("SC_IOV_MAX")
"""Number of parts that the system call `sendmsg` accepts."""
_SEND_PATIENCE_S: Final = 0.05
"""How long `send` waits for a server that does not read."""


class FrameStream:
    """A connection for calls of one method. One thread sends and receives; any thread may cancel."""

    def __init__(self, connected: socket.socket) -> None:
        """Use a connected socket."""
        connected.setblocking(False)
        self._socket = connected
        self._arrival = select.poll()  # kept, because a new one would cost every reply about a microsecond
        self._arrival.register(connected, select.POLLIN)
        self.is_alive: Callable[[], bool] = lambda: True
        """Tells whether the server answers on another connection. Called when a reply is late."""
        self._parser = FrameParser(LONGEST_BYTES)
        self._unsent = memoryview(b"")
        self._sent = self._received = 0  # numbers of messages; each is written by one thread

    def send(self, message: bytes) -> None:
        """Send a message. If the connection is broken, `receive` raises.

        If the server does not read the data soon, this method returns, and the next `receive` or `send` continues.
        Waiting here could deadlock, because the server may itself be waiting until its replies are read.
        """
        self._sent += 1
        frame = frame_head(len(message)) + message
        # Do not wait if the server has not even read the last message.
        deadline = time.monotonic() + (0.0 if self._unsent else _SEND_PATIENCE_S)
        self._unsent = memoryview(b"".join((self._unsent, frame)) if self._unsent else frame)
        while self._send_some() and self._wait(select.POLLOUT, deadline):
            pass

    def send_whole(self, parts: Sequence[Content]) -> None:
        """Send a message, given in parts, and wait until the socket has accepted it, or raise `OSError`."""
        self._sent += 1
        left = [memoryview(frame_head(sum(map(len, parts)))), *(memoryview(part) for part in parts)]
        left.reverse()
        while left:
            try:
                sent = self._socket.sendmsg(left[: -_MOST_PARTS - 1 : -1])
            except BlockingIOError:
                self._wait(select.POLLOUT, math.inf)
                continue
            while left and sent >= len(left[-1]):
                sent -= len(left.pop())
            if left:
                left[-1] = left[-1][sent:]

    def receive(self, timeout_s: float = math.inf) -> Content:
        """See `replay_client._transport.answered_stream.Stream`.

        A late reply alone is no error, because a request may have to wait for rows on the server.
        """
        deadline = time.monotonic() + timeout_s
        try:
            kind, content = self._frame(deadline)
        except TimeoutError:
            raise DeadlineExceededError("timed out") from None
        except ServerUnavailableError:
            self.cancel()
            raise
        except (OSError, FrameError) as error:
            self.cancel()
            raise ServerUnavailableError(f"the connection to the server broke: {error}") from None
        self._received += 1
        if kind is FrameKind.STATUS:
            raise from_status(status_pb2.Status.FromString(bytes(content)))
        return content

    def cancel(self) -> None:
        """Cancel the connection. From then on, `receive` raises, even in a thread that is already waiting."""
        with suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. Call only while no thread is in `receive`."""
        self.cancel()
        self._socket.close()

    def _frame(self, deadline: float) -> tuple[FrameKind, Content]:
        while (taken := self._parser.take()) is None:
            if not self._wait_for_data(deadline):
                self._check_silence(deadline)
                continue
            try:
                size = self._socket.recv_into(self._parser.space())
            except BlockingIOError:
                continue
            if not size:
                raise ConnectionResetError("the server ended it")
            self._parser.received(size)
        return taken

    def _wait_for_data(self, deadline: float) -> bool:
        """Wait until data arrives, or until more can be sent. Return False after `SILENCE_S` or at the deadline."""
        if not self._send_some() and deadline == math.inf and self._arrival.poll(NOTICED_S * 1000):
            return True  # usually
        events = select.POLLIN | (select.POLLOUT if self._unsent else 0)
        return self._wait(events, min(deadline, time.monotonic() + SILENCE_S))

    def _check_silence(self, deadline: float) -> None:
        """After a silence, raise if the deadline has passed, or if requests are unanswered and the server is dead."""
        is_dead = time.monotonic() < deadline and self._sent > self._received and not self.is_alive()
        if time.monotonic() >= deadline:
            raise TimeoutError
        if is_dead:
            error = ServerUnavailableError("the server no longer answers")
            error.silent_s = SILENCE_S
            raise error

    def _send_some(self) -> bool:
        """Send as much as the socket accepts now; return whether data is left."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return True
        except OSError:
            # The server closed the connection. `receive` may still find the reason.
            self._unsent = memoryview(b"")
        return False

    def _wait(self, events: int, deadline: float) -> bool:
        """Wait until the socket is ready. Return False if the deadline comes first."""
        poll = select.poll()
        poll.register(self._socket, events)
        while True:
            left = left_s(deadline)
            wait_s = blocks_for_s(left)
            if poll.poll(None if wait_s is None else min(wait_s * 1000, _LONGEST_WAIT_MS)):
                return True
            if left == 0:
                return False


class DirectFrames:
    """A connection to the local socket, on which the receiving thread also sends."""

    def __init__(self, frames: FrameStream, pending: PendingRequests[Any]) -> None:
        """Use an open connection for the pending requests."""
        self._frames = frames
        self._pending = pending
        self.receive = frames.receive
        self.cancel = frames.cancel
        self.close = frames.close

    def send_pending(self) -> None:
        """See `Stream`."""
        while (request := self._pending.next_to_send()) is not None:
            self._frames.send(b"".join(request.parts()))


class SentFrames:
    """A connection to the local socket with a thread that sends, as gRPC has for its streams."""

    def __init__(self, frames: FrameStream, requests: Iterator[Sequence[Content]], wake: Callable[[], None]) -> None:
        """Start the thread. It sends ``requests``, each in parts, until the iterator or the connection ends.

        ``wake`` wakes up the iterator.
        """
        self.send_pending = wake
        self.cancel = frames.cancel
        self._frames = frames
        self._requests = requests
        self._failure: Exception | None = None  # what kept a request from being built
        self._sender = threading.Thread(target=self._send_all, name="replay-writer-sends", daemon=True)
        self._sender.start()

    def receive(self, timeout_s: float) -> Content:
        """See `Stream`. Raises what kept a request from being built, too."""
        try:
            return self._frames.receive(timeout_s)
        except ServerUnavailableError:
            if self._failure is not None:
                raise self._failure from None
            raise

    def close(self) -> None:
        """See `Stream`. Waits for the thread to end."""
        self._sender.join()
        self._frames.close()

    def _send_all(self) -> None:
        try:
            for request in self._requests:
                self._frames.send_whole(request)
        except OSError as error:
            log.debug("the connection to the server broke while a request was sent: %s", error)
        except Exception as error:  # for example, a lack of memory
            self._failure = error
        self._frames.cancel()  # so that nobody waits for the reply to what was not sent
