"""A stream over the local socket whose requests are sent by a background thread, as gRPC does for its streams."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence

from replay_proto.frames import Content

from replay_client._transport.frame_stream import FrameStream
from replay_client.errors import ServerUnavailableError


class SentFrames:
    """See the module. One thread receives and closes; any thread may cancel."""

    def __init__(self, frames: FrameStream, requests: Iterator[Sequence[Content]]) -> None:
        """Start the thread. It sends ``requests``, each in parts, until the iterator or the connection ends."""
        self._frames = frames
        self._requests = requests
        self._failure: Exception | None = None  # why the thread has ended, if not because of the connection
        self._sender = threading.Thread(target=self._send_all, name="replay-writer-sends", daemon=True)
        self._sender.start()

    def receive(self, timeout_s: float = math.inf) -> Content:
        """Wait for the next reply; see `FrameStream.receive`. Raises what kept a request from being built, too."""
        try:
            return self._frames.receive(timeout_s)
        except ServerUnavailableError:
            if self._failure is not None:
                raise self._failure from None
            raise

    def cancel(self) -> None:
        """Cancel the connection; `receive` raises from then on."""
        self._frames.cancel()

    def close(self) -> None:
        """Wait for the thread to end, and close the socket. Call `cancel` first, unless ``requests`` has ended."""
        self._sender.join()
        self._frames.close()

    def _send_all(self) -> None:
        try:
            for request in self._requests:
                if not self._frames.send_whole(request):
                    break
        except Exception as error:  # for example, a lack of memory
            self._failure = error
        self._frames.cancel()  # so that nobody waits for the answer to what was not sent
