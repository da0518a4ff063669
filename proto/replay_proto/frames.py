"""Splits the bytes of a local socket into frames, each of which contains one message.

    link.sendall(frame_head(len(request)) + request)
    while (frame := parser.take()) is None:
        parser.received(link.recv_into(parser.space()))

`FrameHello` in the protocol documents the format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np

Content: TypeAlias = bytes | memoryview
"""The content of a frame. The content of a long frame is a view of a separate buffer."""

_HEAD = struct.Struct("<II")
HEAD_BYTES = _HEAD.size
"""Length of a frame's header, which precedes its content."""
CHUNK_BYTES: Final = 1 << 16
"""Size of the chunk that receives short frames. The content of a longer frame is received into a separate buffer."""


class FrameKind(IntEnum):
    """Type of a frame's content."""

    MESSAGE = 0
    """A message of the connection's method."""
    STATUS = 1
    """A google.rpc.Status, which refuses a request."""


_KINDS: Final = tuple(FrameKind)


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
    """Splits received bytes into frames.

    Short frames are received into a chunk of memory that is reused. The content of a longer frame is received directly
    into a separate buffer.
    """

    def __init__(self, limit_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        """Begin with a chunk of this size, which may grow up to `CHUNK_BYTES`."""
        self.limit_bytes = limit_bytes
        """Maximum length of a frame's content; can be changed."""
        self.may_begin: Callable[[int], bool] = lambda _: True
        """Whether a frame of this size may be received into a separate buffer now; if not, `take` asks again."""
        self.may_grow: Callable[[], bool] = lambda: True
        """Whether a smaller chunk may grow to `CHUNK_BYTES`. If not, frames that do not fit count as longer ones."""
        self._chunk = np.empty(chunk_bytes, np.uint8).data
        self._start = self._end = 0  # bounds of the unread bytes in the chunk
        self._long: memoryview | None = None  # content of a frame that does not fit into the chunk
        self._long_kind = FrameKind.MESSAGE
        self._long_end = 0  # number of bytes of `_long` that have arrived

    @property
    def has_space(self) -> bool:
        """Whether `space` returns any memory; if not, take all complete frames first."""
        return self._is_long_open or self._end < len(self._chunk)

    def space(self) -> memoryview:
        """Return memory to receive the next bytes into. Call `received` afterwards."""
        if self._is_long_open:
            assert self._long is not None
            return self._long[self._long_end :]
        return self._chunk[self._end :]

    def received(self, count: int) -> None:
        """Record that ``count`` bytes were received into the beginning of `space`."""
        if self._is_long_open:
            self._long_end += count
        else:
            self._end += count

    def take(self) -> tuple[FrameKind, Content] | None:
        """Remove and return the next frame, or None if it is incomplete; a long one raises `FrameTooLongError`."""
        taken = self._take_short() if self._long is None else self._take_long()
        if taken is None:
            self._make_room()
        return taken

    def _take_short(self) -> tuple[FrameKind, Content] | None:
        """Take the next frame from the chunk."""
        head = self._next_head()
        if head is None:
            return None
        kind, size = head
        content, end = self._start + HEAD_BYTES, self._start + HEAD_BYTES + size
        if end <= self._end:
            self._start = end
            return kind, bytes(self._chunk[content:end])
        if HEAD_BYTES + size > len(self._chunk):
            if HEAD_BYTES + size <= CHUNK_BYTES and self.may_grow():
                self._grow()
            elif self.may_begin(size):
                self._begin_long(kind, size)
        return None

    def _grow(self) -> None:
        unread = self._chunk[self._start : self._end]
        self._chunk = np.empty(CHUNK_BYTES, np.uint8).data
        self._chunk[: len(unread)] = unread
        self._start, self._end = 0, len(unread)

    def _take_long(self) -> tuple[FrameKind, Content] | None:
        """Take the frame with a separate buffer."""
        if self._is_long_open:
            return None
        assert self._long is not None
        taken, self._long = (self._long_kind, self._long), None
        return taken

    @property
    def _is_long_open(self) -> bool:
        """Whether the next bytes belong in the separate buffer."""
        return self._long is not None and self._long_end < len(self._long)

    def _make_room(self) -> None:
        """Move an incomplete frame to the beginning of a full chunk.

        This copies at most once per chunk of received bytes, however short the frames are.
        """
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._chunk):
            unread = self._end - self._start
            self._chunk[:unread] = self._chunk[self._start : self._end]
            self._start, self._end = 0, unread

    def _next_head(self) -> tuple[FrameKind, int] | None:
        """Return the next frame's kind and the length of its content, or None if its header is incomplete."""
        if self._end - self._start < HEAD_BYTES:
            return None
        size, kind = _HEAD.unpack_from(self._chunk, self._start)
        if kind > FrameKind.STATUS:
            raise FrameError(f"expected a frame of kind 0 or 1, got kind {kind}")
        if size > self.limit_bytes:
            raise FrameTooLongError(self.limit_bytes, size)
        return _KINDS[kind], size

    def _begin_long(self, kind: FrameKind, size: int) -> None:
        """Allocate memory for this frame, and copy the part that has already arrived."""
        content = self._chunk[self._start + HEAD_BYTES : self._end]
        self._long, self._long_kind, self._long_end = np.empty(size, np.uint8).data, kind, len(content)
        self._long[: len(content)] = content
        self._start = self._end
