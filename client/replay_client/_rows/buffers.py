"""Memory for arrays that are handed out, used again once nothing refers to them.

buffer = buffers.take(1 << 20)              # uint8[at least 1 << 20]
batch = buffer[:1000].view("<f4")           # while this lives, nobody else gets the buffer
"""

from __future__ import annotations

import sys
from typing import Final

import numpy as np
from numpy.typing import NDArray

_ONLY_OURS: Final = 3
"""References to a buffer that nobody has: the pool's list, its loop, and the argument of `sys.getrefcount`."""
_KEPT: Final = 32
"""Buffers that are kept."""
_KEPT_BYTES: Final = 1 << 28
"""Of these, free ones of other sizes go where all would be larger."""
_PAGE_BYTES: Final = 4096


class Buffers:
    """A pool of buffers; fresh memory costs as much as what is copied to it. Threads may share one."""

    def __init__(self) -> None:
        """Begin with none."""
        self._buffers: list[NDArray[np.uint8]] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        """Memory that nothing refers to any more, or new memory.

        Returns:
            uint8[size, rounded up to whole pages].
        """
        size = -(-size // _PAGE_BYTES) * _PAGE_BYTES
        buffer = self._free(size)
        if buffer is None:
            self._make_room(size)
            buffer = np.empty(size, np.uint8)
            self._buffers.append(buffer)
        return buffer

    def _free(self, size: int) -> NDArray[np.uint8] | None:
        for buffer in self._buffers:
            if len(buffer) == size and sys.getrefcount(buffer) <= _ONLY_OURS:
                return buffer
        return None

    def _make_room(self, size: int) -> None:
        """Let go of some; threads that come here at once may pass the bounds by a few."""
        if size + sum(map(len, self._buffers)) > _KEPT_BYTES:
            self._buffers = [buffer for buffer in self._buffers if sys.getrefcount(buffer) > _ONLY_OURS]
        del self._buffers[: max(0, len(self._buffers) - _KEPT + 1)]
