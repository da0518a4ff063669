"""Keeps the unanswered requests of a stream, without I/O, threads or clocks.

    pending.add(request)
    while (request := pending.next_to_send()) is not None:
        send(request.parts())
    request = pending.answered()                    # replies come in the order of the requests

When a stream breaks, a new stream sends all pending requests again, in order:

    pending.broken()
    pause_s = pending.failed(error, now)            # raises the error if another stream cannot help

So requests must be idempotent or carry a sequence number. Callers do the I/O and pass the time, on any clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

from replay_proto.frames import Content

from replay_client._transport.attempts import pauses_s
from replay_client.errors import ReplayError, ServerUnavailableError


@dataclass
class Request(ABC):
    """A message waiting for its reply."""

    attempts: int = field(default=0, init=False)
    """Number of streams on which the message was sent."""

    @abstractmethod
    def parts(self) -> Sequence[Content]:
        """Return the serialized message, in parts. It must be complete, because it may be the first on a new stream.

        In a client with threads, the sending thread calls this method, without a lock.
        """

    def refused(self, error: ReplayError) -> Self | None:
        """End the request without an answer, because the server has refused it with this error.

        Return a request for the part of it that must be sent all the same; None if there is none.
        """
        return None


R = TypeVar("R", bound=Request)


class PendingRequests(Generic[R]):
    """See the module."""

    def __init__(self, *, reconnect_timeout_s: float, keep_refused: bool) -> None:
        """Begin without requests. An unreachable server is retried for ``reconnect_timeout_s`` until `failed` raises.

        If ``keep_refused``, refused requests stay pending, so that they are sent again.
        """
        self.requests: deque[R] = deque()
        """Unanswered requests, oldest first."""
        self._reconnect_timeout_s = reconnect_timeout_s
        self._keep_refused = keep_refused
        self._sent = 0  # number of requests in flight on the current stream
        self._failing_since: float | None = None
        self._pauses_s: Iterator[float] = iter(())

    @property
    def has_unsent(self) -> bool:
        """Whether `next_to_send` returns a request."""
        return self._sent < len(self.requests)

    @property
    def is_failing(self) -> bool:
        """Whether the last stream broke, requests are pending, and no reply has come since."""
        return self._failing_since is not None and bool(self.requests)

    def add(self, request: R) -> None:
        """Add a request, to be sent after the others."""
        self.requests.append(request)

    def next_to_send(self) -> R | None:
        """Return the next request to send on the current stream, and count it as sent. Return None if all were sent."""
        if self._sent >= len(self.requests):
            return None
        request = self.requests[self._sent]
        self._sent += 1
        request.attempts += 1
        return request

    def answered(self) -> R:
        """Remove and return the request whose reply was just received."""
        self._sent -= 1
        self._failing_since = None
        return self.requests.popleft()

    def replace(self, requests: Iterable[R]) -> None:
        """Replace all requests. Call only while there is no stream."""
        assert not self._sent
        self.requests = deque(requests)

    def broken(self) -> None:
        """Record that the current stream has ended. The next one must send all requests."""
        self._sent = 0

    def failed(self, error: Exception, now: float, *, is_cut: bool = False) -> float:
        """Return the seconds to pause after a stream that ended with this error. Call `broken` first.

        ``is_cut`` says that the server is there, but something between cut the stream while it waited.

        Raises:
            Exception: the error, if the server was unreachable for too long, or if the oldest request was refused.
        """
        if not isinstance(error, ServerUnavailableError):
            self._failing_since = None
            if isinstance(error, ReplayError) and not self._keep_refused:
                left = self.requests.popleft().refused(error)  # a refusal is also a reply, and replies arrive in order
                if left is not None:
                    self.requests.appendleft(left)
            raise error
        if is_cut:
            self._failing_since = None
            return next(pauses_s())
        if self._failing_since is None:
            self._failing_since = now - error.silent_s
            self._pauses_s = pauses_s()
        if now - self._failing_since >= self._reconnect_timeout_s:
            self._failing_since = None
            raise error
        return next(self._pauses_s)
