"""Frames, which carry messages without gRPC.

    link.sendall(frame_head(len(request)) + request)
    parser.feed(link.recv(1 << 16))
    kind, content = parser.take()

`FrameHello` in the protocol documents the format.
"""

from __future__ import annotations

import struct
from enum import IntEnum

_HEAD = struct.Struct("<II")
HEAD_BYTES = _HEAD.size
"""Bytes of a frame before its content."""


class FrameKind(IntEnum):
    """Type of a frame's content."""

    MESSAGE = 0
    """A message of the connection's method."""
    STATUS = 1
    """A google.rpc.Status: a refusal."""


class FrameError(Exception):
    """Received data is not a valid frame."""


class FrameTooLongError(FrameError):
    """A received frame exceeds the limit."""

    def __init__(self, limit_bytes: int, got_bytes: int) -> None:
        super().__init__(f"expected a frame of at most {limit_bytes} bytes, got one of {got_bytes}")
        self.limit_bytes = limit_bytes
        self.got_bytes = got_bytes


def frame_head(content_bytes: int, kind: FrameKind = FrameKind.MESSAGE) -> bytes:
    """Return the header of a frame with content of this length."""
    return _HEAD.pack(content_bytes, kind)


class FrameParser:
    """Splits received bytes into frames."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        """Maximum length of a frame's content; can be changed."""
        self._received = bytearray()
        self._start = 0  # offset of the first unread byte

    def feed(self, data: bytes | memoryview) -> None:
        """Add received bytes."""
        if self._start == len(self._received):
            self._received = bytearray(data)
        else:
            # Drop consumed bytes: otherwise, a peer that never pauses would grow the buffer forever.
            del self._received[: self._start]
            self._received += data
        self._start = 0

    @property
    def waiting_bytes(self) -> int:
        """Number of received bytes that have not been taken yet."""
        return len(self._received) - self._start

    def next_head(self) -> tuple[FrameKind, int] | None:
        """Kind of the next frame and length of its content; None until its header has arrived.

        Raises:
            FrameTooLongError: the frame exceeds the limit.
            FrameError: the data is not a frame.
        """
        if self.waiting_bytes < HEAD_BYTES:
            return None
        size, kind = _HEAD.unpack_from(self._received, self._start)
        if kind > FrameKind.STATUS:
            raise FrameError(f"expected a frame of kind 0 or 1, got kind {kind}")
        if size > self.limit_bytes:
            raise FrameTooLongError(self.limit_bytes, size)
        return FrameKind(kind), size

    def take(self) -> tuple[FrameKind, bytes] | None:
        """Remove and return the next frame; None if it is incomplete. Raises like `next_head`."""
        head = self.next_head()
        if head is None:
            return None
        kind, size = head
        end = self._start + HEAD_BYTES + size
        if len(self._received) < end:
            return None
        content = bytes(memoryview(self._received)[self._start + HEAD_BYTES : end])
        self._start = end
        return kind, content
