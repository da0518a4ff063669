"""A stream of frames whose requests another thread sends, like those of a gRPC stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from replay_proto.frames import Content

from replay_client._transport.frame_stream import FrameStream


class SentFrames:
    """See the module. One thread receives and closes; any thread may cancel."""

    def __init__(self, frames: FrameStream, requests: Iterator[Sequence[Content]]) -> None:
        """Send ``requests``, each in parts, until they end, or the connection does."""
        self._frames = frames
        self._requests = requests
        self._sender = threading.Thread(target=self._send_all, name="replay-writer-sends", daemon=True)
        self._sender.start()

    def receive(self) -> Content:
        """Wait for the next reply; see `FrameStream.receive`."""
        return self._frames.receive()

    def cancel(self) -> None:
        """Cancel the connection; `receive` raises from then on."""
        self._frames.cancel()

    def close(self) -> None:
        """Wait for the sending thread, and close the socket. ``requests`` must have ended, or `cancel` been called."""
        self._sender.join()
        self._frames.close()

    def _send_all(self) -> None:
        for request in self._requests:
            if not self._frames.send_whole(request):
                return
