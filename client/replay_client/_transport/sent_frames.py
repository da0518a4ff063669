"""A stream over the local socket whose requests are sent by a background thread, as gRPC does for its streams."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence

from replay_proto.frames import Content

from replay_client._transport.frame_stream import FrameStream


class SentFrames:
    """See the module. One thread receives and closes; any thread may cancel."""

    def __init__(self, frames: FrameStream, requests: Iterator[Sequence[Content]]) -> None:
        """Start the thread. It sends ``requests``, each in parts, until the iterator or the connection ends."""
        self._frames = frames
        self._requests = requests
        self._sender = threading.Thread(target=self._send_all, name="replay-writer-sends", daemon=True)
        self._sender.start()

    def receive(self, timeout_s: float = math.inf) -> Content:
        """Wait for the next reply; see `FrameStream.receive`."""
        return self._frames.receive(timeout_s)

    def cancel(self) -> None:
        """Cancel the connection; `receive` raises from then on."""
        self._frames.cancel()

    def close(self) -> None:
        """Wait for the thread to end, and close the socket. Call `cancel` first, unless ``requests`` has ended."""
        self._sender.join()
        self._frames.close()

    def _send_all(self) -> None:
        for request in self._requests:
            if not self._frames.send_whole(request):
                return
