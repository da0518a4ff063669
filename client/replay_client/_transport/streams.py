"""The ways to a server for the requests of an `AnsweredStream`: over gRPC, or over the local socket.

They differ in who sends. gRPC has a thread that pulls requests from an iterator. Over the local socket, a learner sends
its short requests itself (`DirectFrames`), and a writer has a thread that sends long ones (`SentFrames`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from replay_proto.frames import Content

from replay_client._transport.connection import MessageStream
from replay_client._transport.frame_stream import FrameStream
from replay_client._transport.pending import PendingRequests
from replay_client.errors import ServerUnavailableError

log = logging.getLogger(__name__)


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
