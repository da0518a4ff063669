"""Frames on the unix-domain socket of a server: the contract's `LocalHello` says how they look.

link.sendall(frame(request))
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
    """What came is not a frame, or a longer one than is taken."""


def frame_head(content_bytes: int, kind: FrameKind = FrameKind.MESSAGE) -> bytes:
    """What precedes a content of so many bytes."""
    return _HEAD.pack(content_bytes, kind)


class FrameParser:
    """Takes bytes as they come, and gives frames."""

    def __init__(self, limit_bytes: int) -> None:
        """Begin with nothing.

        Args:
            limit_bytes: how long a content may be.
        """
        self._limit_bytes = limit_bytes
        self._received = bytearray()
        self._start = 0  # of what was not taken yet

    def feed(self, data: bytes | memoryview) -> None:
        """Take in what has come."""
        if self._start == len(self._received):
            self._received = bytearray(data)
            self._start = 0
        else:
            self._received += data

    @property
    def waiting_bytes(self) -> int:
        """Bytes that came and were not taken yet."""
        return len(self._received) - self._start

    def take(self) -> tuple[FrameKind, bytes] | None:
        """The next frame, if it is there whole.

        Raises:
            FrameError: if there is something else.
        """
        if self.waiting_bytes < HEAD_BYTES:
            return None
        size, kind = _HEAD.unpack_from(self._received, self._start)
        if size > self._limit_bytes or kind > FrameKind.STATUS:
            raise FrameError(f"expected a frame of at most {self._limit_bytes} bytes, got one of {size}, kind {kind}")
        end = self._start + HEAD_BYTES + size
        if len(self._received) < end:
            return None
        content = bytes(memoryview(self._received)[self._start + HEAD_BYTES : end])
        self._start = end
        return FrameKind(kind), content
