"""Frames: how messages travel without gRPC. The contract's `FrameHello` says how they look.

link.sendall(frame_head(len(request)) + request)
parser.feed(link.recv(1 << 16))
kind, content = parser.take()
"""

from __future__ import annotations

import struct
from enum import IntEnum

_HEAD = struct.Struct("<II")
HEAD_BYTES = _HEAD.size
"""Bytes of a frame before its content."""


class FrameKind(IntEnum):
    """What a frame holds."""

    MESSAGE = 0
    """A message of the method that the connection is for."""
    STATUS = 1
    """A google.rpc.Status: a refusal."""


class FrameError(Exception):
    """What came is not a frame."""


class FrameTooLongError(FrameError):
    """What came is a longer frame than is taken."""

    def __init__(self, limit_bytes: int, got_bytes: int) -> None:
        super().__init__(f"expected a frame of at most {limit_bytes} bytes, got one of {got_bytes}")
        self.limit_bytes = limit_bytes
        self.got_bytes = got_bytes


def frame_head(content_bytes: int, kind: FrameKind = FrameKind.MESSAGE) -> bytes:
    """What precedes a content of so many bytes."""
    return _HEAD.pack(content_bytes, kind)


class FrameParser:
    """Takes bytes as they come, and gives frames."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        """How long a content may be; may be set."""
        self._received = bytearray()
        self._start = 0  # of what was not taken yet

    def feed(self, data: bytes | memoryview) -> None:
        """Take in what has come."""
        if self._start == len(self._received):
            self._received = bytearray(data)
        else:
            # What was taken goes: a peer that never pauses would have us keep all that it ever sent.
            del self._received[: self._start]
            self._received += data
        self._start = 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes that came and were not taken yet."""
        return len(self._received) - self._start

    def next_head(self) -> tuple[FrameKind, int] | None:
        """Kind of the next frame and length of its content, once its head is there.

        Raises:
            FrameTooLongError: if it is longer than the limit.
            FrameError: if there is something else.
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
        """The next frame, if it is there whole; raises as `next_head`."""
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
