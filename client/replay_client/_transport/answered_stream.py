"""A stream that receives replies in the order of its requests, and reconnects when it breaks.

    stream = AnsweredStream(connection, "Learn", reconnect_timeout_s=60.0, keep_refused=False)
    stream.send(request)                            # returns immediately
    request, answer = stream.receive()              # waits; replies come in the order of the requests

Unanswered requests are kept. If the server goes away, the stream is reopened with backoff and sends these requests
again, in order. So requests must be idempotent or carry a sequence number. If the server refuses a request, `receive`
raises the error.

Requests are sent by a thread of gRPC or, with a `FrameStream`, by the thread that calls `send`.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from replay_proto.frames import Content

from replay_client._transport.connection import Connection, MessageStream, StreamMethod, pauses_s
from replay_client._transport.frame_stream import FrameStream
from replay_client._transport.sent_frames import SentFrames
from replay_client._transport.time_limits import left_s, time_limit
from replay_client.errors import ClosedError, DeadlineExceededError, ReplayError, ServerUnavailableError


@dataclass
class Request(ABC):
    """A message waiting for its reply."""

    attempts: int = field(default=0, init=False)
    """Number of streams on which the message was sent."""

    @abstractmethod
    def parts(self) -> Sequence[Content]:
        """Return the serialized message, in parts. It must be complete, because it may be the first on a new stream.

        The sending thread calls this method without holding `AnsweredStream.changed`.
        """


R = TypeVar("R", bound=Request)


class AnsweredStream(Generic[R]):
    """See the module. One thread may receive. Any thread may send; with a `FrameStream`, only the receiving thread."""

    def __init__(
        self,
        connection: Connection,
        method: StreamMethod,
        *,
        reconnect_timeout_s: float | None,
        keep_refused: bool,
        before_waiting: Callable[[], float | None] = lambda: None,
        open_around: Callable[[], FrameStream | None] = lambda: None,
        sends_in_background: bool = False,
    ) -> None:
        """Create the stream; the first request opens it.

        Args:
            connection: the connection to the server.
            method: the RPC.
            reconnect_timeout_s: seconds to retry an unreachable server before `receive` raises.
            keep_refused: whether refused requests stay pending, so that the next `receive` sends them again.
            before_waiting: called in the sending thread, with `changed` held, when there is nothing to send. It may
                call `send`. It returns the seconds until the next call, or None.
            open_around: opens a stream that bypasses gRPC, or returns None if that is impossible.
            sends_in_background: whether requests on such a stream are sent by a background thread; if not, by `send`.
        """
        self.changed = threading.Condition()
        """Guards all state of this object and its owner; notified of every change."""
        self.pending: deque[R] = deque()
        """Unanswered requests, oldest first."""
        self._connection = connection
        self._method = method
        self._reconnect_timeout_s = time_limit("reconnect_timeout_s", reconnect_timeout_s, connection.timeout_s)
        self._keep_refused = keep_refused
        self._before_waiting = before_waiting
        self._open_around = open_around
        self._sends_in_background = sends_in_background
        self._stream: MessageStream | FrameStream | SentFrames | None = None
        self._token: object = None  # identifies the open stream
        self._sent = 0  # number of pending requests in flight on this stream
        self._failing_since: float | None = None
        self._pauses_s: Iterator[float] = iter(())
        self._closed = False

    def send(self, request: R) -> None:
        """Queue a request; it is sent as soon as the stream allows."""
        with self.changed:
            self.pending.append(request)
            if isinstance(self._stream, FrameStream):
                self._send_now(self._stream, request)
            self.changed.notify_all()

    def receive(self, deadline: float = math.inf) -> tuple[R, Content]:
        """Wait for the reply to the oldest request; if there is no request yet, wait for one.

        Raises:
            ServerUnavailableError: the server was unreachable for `reconnect_timeout_s`. Calling again retries.
            DeadlineExceededError: the deadline passed. Calling again continues waiting.
            ClosedError: the stream was closed.
            ReplayError: the oldest request was refused.
        """
        while True:
            stream = self._opened(deadline)
            try:
                answer = self._answer(stream, deadline)
            except Exception as error:
                self._drop(stream)
                self._raise_unless_passing(error, deadline)
                continue
            except BaseException:
                self._drop(stream)  # a partial reply may have been read
                raise
            with self.changed:
                request = self.pending.popleft()
                self._sent -= 1
                self._failing_since = None
                self.changed.notify_all()
            return request, answer

    def replace_pending(self, requests: Iterable[R]) -> None:
        """Replace the pending requests. Call only while no stream is open."""
        with self.changed:
            assert self._stream is None
            self.pending = deque(requests)
            self.changed.notify_all()

    def close(self, *, is_received: bool = True) -> None:
        """Close the stream. From now on `receive` raises `ClosedError`, also in a thread that is already waiting.

        ``is_received``: whether another thread may be receiving.
        """
        with self.changed:
            self._closed = True
            self.changed.notify_all()
            stream = self._stream
        if stream is None or self._connection.is_forked:
            return
        stream.cancel()
        if isinstance(stream, FrameStream) and not is_received:
            stream.close()

    def _opened(self, deadline: float) -> MessageStream | FrameStream | SentFrames:
        """Return the stream, opening it once there is something to send."""
        with self.changed:
            while not self._closed and self._stream is None and not self.pending:
                wait_s = self._before_waiting()
                if not self.pending:
                    self._wait(wait_s, deadline)
            if self._closed:
                raise ClosedError("this stream is closed")
            if self._stream is None:
                self._sent = 0
                self._token = object()
                self._stream = self._open()
            return self._stream

    def _open(self) -> MessageStream | FrameStream | SentFrames:
        frames = self._open_around()
        if frames is None:
            return self._connection.open_stream(self._method, map(b"".join, self._requests(self._token)))
        if self._sends_in_background:
            return SentFrames(frames, self._requests(self._token))
        for request in self.pending:
            self._send_now(frames, request)
        return frames

    def _send_now(self, stream: FrameStream, request: R) -> None:
        request.attempts += 1
        self._sent += 1
        stream.send(b"".join(request.parts()))

    def _requests(self, token: object) -> Iterator[Sequence[Content]]:
        """Yield messages in parts to the sending thread until the stream with this token is replaced."""
        while True:
            with self.changed:
                while self._token is token and not self._closed and self._sent >= len(self.pending):
                    wait_s = self._before_waiting()
                    if self._sent >= len(self.pending):
                        self.changed.wait(wait_s)
                if self._token is not token or self._closed:
                    return
                request = self.pending[self._sent]
                self._sent += 1
                request.attempts += 1
            yield request.parts()

    def _answer(self, stream: MessageStream | FrameStream | SentFrames, deadline: float) -> Content:
        left = left_s(deadline)
        if left is None:
            return stream.receive()
        # gRPC has no deadlines for single messages of a stream, so cancel the stream. A new one resends the requests.
        timer = threading.Timer(left, stream.cancel)
        timer.daemon = True
        timer.start()
        try:
            return stream.receive()
        finally:
            timer.cancel()

    def _drop(self, stream: MessageStream | FrameStream | SentFrames) -> None:
        stream.cancel()
        with self.changed:
            if isinstance(stream, FrameStream):
                stream.close()  # no `send` is running
            self._token = object()
            self._stream = None
            self._sent = 0
            self.changed.notify_all()
        if isinstance(stream, SentFrames):
            stream.close()

    def _raise_unless_passing(self, error: Exception, deadline: float) -> None:
        """Raise the error; if a new stream may help, pause instead."""
        if self._closed:
            raise ClosedError("this stream is closed") from None
        now = time.monotonic()
        if now >= deadline:
            raise DeadlineExceededError("timed out") from None
        if not isinstance(error, ServerUnavailableError):
            self._refused(error)
            raise error
        if self._failing_since is None:
            self._failing_since = now
            self._pauses_s = pauses_s()
        if now - self._failing_since >= self._reconnect_timeout_s:
            self._failing_since = None
            raise error
        with self.changed:
            self._wait_until(now + next(self._pauses_s))

    def _refused(self, error: Exception) -> None:
        self._failing_since = None
        if isinstance(error, ReplayError) and not self._keep_refused:
            with self.changed:
                self.pending.popleft()  # a refusal is also a reply, and replies arrive in order

    def _wait_until(self, moment: float) -> None:
        while not self._closed and (left_s := moment - time.monotonic()) > 0:
            self.changed.wait(left_s)

    def _wait(self, wait_s: float | None, deadline: float) -> None:
        left = left_s(deadline)
        if left == 0:
            raise DeadlineExceededError("timed out")
        self.changed.wait(min((seconds for seconds in (wait_s, left) if seconds is not None), default=None))
