"""A stream that receives replies in the order of its requests, and reconnects when it breaks.

    stream = AnsweredStream(connection, "Learn", pending)
    pending.add(request)
    stream.send_pending()                           # returns immediately
    request, answer = stream.receive()              # waits; replies come in the order of the requests

`PendingRequests` says what to send. If the server goes away, the stream is reopened with backoff and sends unanswered
requests again. If the server refuses a request, `receive` raises the error.

On a gRPC stream, a thread of gRPC sends the requests. On a stream that bypasses gRPC, either the thread that calls
`send_pending` sends them (`DirectFrames`), or a background thread (`SentFrames`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol

from replay_proto.frames import Content

from replay_client._transport.call import left_s
from replay_client._transport.connection import Connection, MessageStream, StreamMethod
from replay_client._transport.data_path import DataPath
from replay_client._transport.frame_stream import DirectFrames, SentFrames
from replay_client._transport.interrupts import wait_for_change
from replay_client._transport.pending import PendingRequests, R
from replay_client.errors import ClosedError, DeadlineExceededError


class Stream(Protocol):
    """An open stream of requests and replies. One thread receives and closes; any thread may cancel."""

    def send_pending(self) -> None:
        """See to it that the pending requests are sent. The lock of the requests is held, so this must not wait."""

    def receive(self, timeout_s: float) -> Content:
        """Wait for the next reply, for at most ``timeout_s`` seconds; `math.inf` means no limit.

        Raises:
            DeadlineExceededError: timed out. The reply still comes, and the next call waits for it.
            ReplayError: the request was refused, or the stream ended.
        """

    def cancel(self) -> None:
        """Cancel the stream; `receive` raises from then on, even in a thread that is already waiting."""

    def close(self) -> None:
        """Release the stream. Call `cancel` first, without holding the lock of the requests."""


class PulledMessages:
    """A gRPC stream, whose thread pulls the requests from an iterator."""

    def __init__(self, messages: MessageStream, wake: Callable[[], None]) -> None:
        """Use an open stream. ``wake`` wakes up its iterator of requests."""
        self.send_pending = wake
        self.receive = messages.receive
        self.cancel = messages.cancel

    def close(self) -> None:
        """See `Stream`: gRPC releases what has been canceled."""


class AnsweredStream(Generic[R]):
    """See the module. Only one thread may receive. Any thread may send, but on a `FrameStream`, only that one."""

    def __init__(
        self,
        connection: Connection,
        method: StreamMethod,
        pending: PendingRequests[R],
        *,
        before_waiting: Callable[[], float | None] = lambda: None,
        path: DataPath,
        sends_in_background: bool = False,
    ) -> None:
        """Create the stream; the first request opens it.

        Args:
            connection: the connection to the server.
            method: the RPC.
            pending: the requests; guarded by `lock`.
            before_waiting: called in the sending thread, with `lock` held, when there is nothing to send. It may
                add requests. It returns the seconds until the next call, or None.
            path: opens streams that bypass gRPC, if that is possible.
            sends_in_background: whether a background thread sends the requests on such a stream. Otherwise,
                `send_pending` does.
        """
        self.lock = threading.RLock()
        """Guards all state of this object and its owner. Entered itself, and not through `changed`, whose methods are
        Python's own: an interrupt in the middle of them would leave the lock taken."""
        self.changed = threading.Condition(self.lock)
        """Notified of changes."""
        self._sender = threading.Condition(self.lock)  # a sampler's replies need not wake up the sending thread
        self.pending = pending
        """Unanswered requests."""
        self._connection = connection
        self._method = method
        self._before_waiting = before_waiting
        self._path = path
        self._sends_in_background = sends_in_background
        self._stream: Stream | None = None
        self._token: object = None  # identifies the open stream
        self.is_closed = False
        """Whether `close` was called."""
        self._opened_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether there is a stream to the server."""
        return self._stream is not None

    def send_pending(self) -> None:
        """Send the requests that were added to `pending`, as soon as the stream allows."""
        if not self.pending.has_unsent:
            return
        stream = None
        try:
            with self.lock:
                stream = self._stream
                if stream is None:
                    self.notify()
                else:
                    stream.send_pending()
        except BaseException:  # Ctrl-C: a message may have been sent in part, or twice
            if stream is not None and not self._sends_in_background:
                self._drop(stream)
            raise

    def notify(self) -> None:
        """Wake up all threads that wait for a change; call with `lock` held."""
        self.changed.notify_all()
        self._sender.notify_all()

    def receive(self, deadline: float = math.inf) -> tuple[R, Content]:
        """Wait for the reply to the oldest request. If there is no request yet, wait for one first.

        Call `notify` afterwards if other threads wait for what the reply changes.

        Raises:
            ServerUnavailableError: the server was unreachable for `reconnect_timeout_s`. Calling again retries.
            DeadlineExceededError: the deadline passed. Calling again continues waiting.
            ClosedError: the stream was closed.
            ReplayError: the oldest request was refused.
        """
        while True:
            if self._stream is None:
                self._path.doubt_if_replaced()
            self._path.renew()
            stream = self._opened(deadline)
            try:
                answer = self._answer(stream, deadline)
            except DeadlineExceededError as error:
                if not error.reason:  # the stream is whole, and its replies still come
                    raise
                self._drop(stream)
                self._raise_unless_passing(error, deadline)
                continue
            except Exception as error:
                self._drop(stream)
                self._raise_unless_passing(error, deadline)
                continue
            except BaseException:
                self._drop(stream)  # a partial reply may have been read
                raise
            try:
                with self.lock:
                    request = self.pending.answered()
            except BaseException:  # Ctrl-C: it may not count as answered
                self._drop(stream)
                raise
            return request, answer

    def restart(self) -> None:
        """End the stream to the server; the next one sends all requests again. Only the thread that receives may."""
        if self._stream is not None:
            self._drop(self._stream)

    def close(self, *, is_received: bool = True) -> None:
        """Close the stream. From now on, `receive` raises `ClosedError`, even in a thread that is already waiting.

        ``is_received`` says whether another thread may be receiving.
        """
        with self.lock:
            self.is_closed = True
            self.notify()
            stream = self._stream
        if stream is None or self._connection.is_forked:
            return
        stream.cancel()
        if not is_received:
            stream.close()

    def _opened(self, deadline: float) -> Stream:
        """Return the stream, opening it once there is something to send."""
        with self.lock:
            while not self.is_closed and self._stream is None and not self.pending.requests:
                wait_s = self._before_waiting()
                if not self.pending.requests:
                    self._wait(wait_s, deadline)
            if self.is_closed:
                raise ClosedError("this stream is closed")
            if self._stream is not None:
                return self._stream
            token = self._token = object()
        stream = self._open(token)  # without the lock: a server that hangs must not block those who add requests
        if not self._adopt(stream):
            self._drop(stream)  # it may have sent requests already
            raise ClosedError("this stream is closed")
        return stream

    def _adopt(self, stream: Stream) -> bool:
        """Use a stream from now on; return False if this one was closed meanwhile."""
        with self.lock:
            if not self.is_closed:
                self._stream, self._opened_at = stream, time.monotonic()
                stream.send_pending()
            return not self.is_closed

    def _open(self, token: object) -> Stream:
        frames = self._path.open_stream(self._method)
        if frames is None:
            messages = self._connection.open_stream(self._method, map(b"".join, self._requests(token)))
            return PulledMessages(messages, self.notify)
        if self._sends_in_background:
            return SentFrames(frames, self._requests(token), self.notify)
        return DirectFrames(frames, self.pending)

    def _requests(self, token: object) -> Iterator[Sequence[Content]]:
        """Yield messages, each in parts, to the sending thread, until the stream with this token is replaced."""
        while True:
            with self.lock:
                while self._token is token and not self.is_closed and not self.pending.has_unsent:
                    wait_s = self._before_waiting()
                    if not self.pending.has_unsent:
                        self._sender.wait(wait_s)
                if self._token is not token or self.is_closed:
                    return
                request = self.pending.next_to_send()
                assert request is not None
            yield request.parts()

    def _answer(self, stream: Stream, deadline: float) -> Content:
        left = left_s(deadline)
        return stream.receive(math.inf if left is None else left)

    def _drop(self, stream: Stream) -> None:
        stream.cancel()
        with self.lock:
            self._token = object()
            self._stream = None
            self.pending.broken()
            self.notify()
        stream.close()

    def _raise_unless_passing(self, error: Exception, deadline: float) -> None:
        """Pause if a new stream may help. Otherwise, raise the error."""
        if self.is_closed:
            raise ClosedError("this stream is closed") from None
        now = time.monotonic()
        if now >= deadline:
            raise DeadlineExceededError("timed out") from None
        is_cut = self._connection.is_cut(error, now - self._opened_at)
        with self.lock:
            self._wait_until(now + self.pending.failed(error, now, is_cut=is_cut))

    def _wait_until(self, moment: float) -> None:
        while not self.is_closed and (left_s := moment - time.monotonic()) > 0:
            wait_for_change(self.changed, left_s)

    def _wait(self, wait_s: float | None, deadline: float) -> None:
        left = left_s(deadline)
        if left == 0:
            raise DeadlineExceededError("timed out")
        seconds = [each for each in (wait_s, left) if each is not None]
        wait_for_change(self.changed, min(seconds, default=None))
