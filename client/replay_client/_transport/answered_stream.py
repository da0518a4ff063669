"""Requests that are answered in order, over a stream that is opened again when it breaks.

    stream = AnsweredStream(connection, "Learn", reconnect_timeout_s=60.0, keep_refused=False)
    stream.send(Request(message))                   # returns at once
    request, answer = stream.receive()              # waits; answers come in the order of the requests

What was sent and not yet answered is kept. When the stream breaks because the server went away, it is opened again,
with pauses in between, and all of that is sent again, in order: this is for requests that may be applied twice, or
that carry a sequence number by which the server knows them. A refusal is not repeated but raised.

Sending happens in a thread of gRPC's (over a `FrameStream`, in the caller's), receiving in the caller's.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from replay_client._transport.connection import Connection, MessageStream, StreamMethod
from replay_client._transport.frame_stream import FrameStream
from replay_client._transport.time_limits import left_s, time_limit
from replay_client.errors import ClosedError, DeadlineExceededError, ReplayError, ServerUnavailableError


@dataclass
class Request:
    """A message that waits for its answer."""

    data: bytes
    """Its wire form, complete in itself: it may become the first message of a new stream."""
    attempts: int = 0
    """On how many streams it was sent."""


R = TypeVar("R", bound=Request)


class AnsweredStream(Generic[R]):
    """See the module. One thread receives; any thread may send, over a `FrameStream` only that one."""

    def __init__(
        self,
        connection: Connection,
        method: StreamMethod,
        *,
        reconnect_timeout_s: float | None,
        keep_refused: bool,
        before_waiting: Callable[[], float | None] = lambda: None,
        open_around: Callable[[], FrameStream | None] = lambda: None,
    ) -> None:
        """Nothing is opened before there is a request.

        Args:
            connection: to the server.
            method: the RPC.
            reconnect_timeout_s: for how long to try to reach a server that is away before `receive` raises, in
                seconds; see `replay_client._transport.time_limits`.
            keep_refused: whether a request that is refused stays pending, and is sent again by the next `receive`.
            before_waiting: called in the sending thread, with `changed` held, when there is nothing to send. It may
                call `send`, and returns after how many seconds it wants to be called again, or None.
            open_around: opens a way around gRPC, if there is one. `send` then sends in its caller's thread.
        """
        self.changed = threading.Condition()
        """Guards all state here, and its owner's; notified when any of it changes."""
        self.pending: deque[R] = deque()
        """Requests without an answer yet, oldest first."""
        self._connection = connection
        self._method = method
        self._reconnect_timeout_s = time_limit("reconnect_timeout_s", reconnect_timeout_s, connection.timeout_s)
        self._keep_refused = keep_refused
        self._before_waiting = before_waiting
        self._open_around = open_around
        self._stream: MessageStream | FrameStream | None = None
        self._token: object = None  # stands for the stream that is open
        self._sent = 0  # how many of the pending requests are on their way on this stream
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

    def receive(self, deadline: float = math.inf) -> tuple[R, bytes]:
        """Wait for the answer to the oldest request; while there is none, for one to be sent.

        Args:
            deadline: when to give up, by the clock of the connection; `math.inf`: never.

        Raises:
            ServerUnavailableError: the server was away for `reconnect_timeout_s`. Calling again tries again.
            DeadlineExceededError: there was no answer in time. Calling again goes on waiting.
            ClosedError: it was closed.
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
                self._drop(stream)  # half an answer may have been taken in
                raise
            with self.changed:
                request = self.pending.popleft()
                self._sent -= 1
                self._failing_since = None
                self.changed.notify_all()
            return request, answer

    def replace_pending(self, requests: Iterable[R]) -> None:
        """Put others in place of the requests that are pending. Only while no stream is open."""
        with self.changed:
            assert self._stream is None
            self.pending = deque(requests)
            self.changed.notify_all()

    def close(self, *, is_received: bool = True) -> None:
        """End the stream; `receive` raises `ClosedError` from now on, also where it waits already.

        Args:
            is_received: whether another thread may be receiving.
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

    def _opened(self, deadline: float) -> MessageStream | FrameStream:
        """The stream, opened once there is something to send."""
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

    def _open(self) -> MessageStream | FrameStream:
        frames = self._open_around()
        if frames is None:
            return self._connection.open_stream(self._method, self._requests(self._token))
        for request in self.pending:
            self._send_now(frames, request)
        return frames

    def _send_now(self, stream: FrameStream, request: R) -> None:
        request.attempts += 1
        self._sent += 1
        stream.send(request.data)

    def _requests(self, token: object) -> Iterator[bytes]:
        """What the sending thread sends, until the stream that the token stands for is no longer the current one."""
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
            yield request.data

    def _answer(self, stream: MessageStream | FrameStream, deadline: float) -> bytes:
        left = left_s(deadline, self._connection.clock())
        if left is None:
            return stream.receive()
        # gRPC has no deadline for one message of a stream: end the stream, what is pending is sent again later.
        timer = threading.Timer(left, stream.cancel)
        timer.daemon = True
        timer.start()
        try:
            return stream.receive()
        finally:
            timer.cancel()

    def _drop(self, stream: MessageStream | FrameStream) -> None:
        stream.cancel()
        with self.changed:
            if isinstance(stream, FrameStream):
                stream.close()  # with no `send` under way
            self._token = object()
            self._stream = None
            self._sent = 0
            self.changed.notify_all()

    def _raise_unless_passing(self, error: Exception, deadline: float) -> None:
        """Pause and return if the stream is worth opening again; raise if not."""
        if self._closed:
            raise ClosedError("this stream is closed") from None
        now = self._connection.clock()
        if now >= deadline:
            raise DeadlineExceededError("timed out") from None
        if not isinstance(error, ServerUnavailableError):
            self._refused(error)
            raise error
        if self._failing_since is None:
            self._failing_since = now
            self._pauses_s = self._connection.backoff.pauses_s(self._connection.rng)
        if now - self._failing_since >= self._reconnect_timeout_s:
            self._failing_since = None
            raise error
        with self.changed:
            self._wait_until(now + next(self._pauses_s))

    def _refused(self, error: Exception) -> None:
        self._failing_since = None
        if isinstance(error, ReplayError) and not self._keep_refused:
            with self.changed:
                self.pending.popleft()  # answers come in order, a refusal is one of them

    def _wait_until(self, moment: float) -> None:
        while not self._closed and (left_s := moment - self._connection.clock()) > 0:
            self.changed.wait(left_s)

    def _wait(self, wait_s: float | None, deadline: float) -> None:
        left = left_s(deadline, self._connection.clock())
        if left == 0:
            raise DeadlineExceededError("timed out")
        self.changed.wait(min((seconds for seconds in (wait_s, left) if seconds is not None), default=None))
