"""Memory for arrays that are handed out, and used again once they are gone.

    array = buffers.lend(1 << 20)               # uint8[at least 1 << 20]
    columns = array[:1000].view("<f4")          # the memory comes back once neither lives

Fresh memory costs as much as copying rows to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_KEPT: Final = 32
"""Free buffers that are kept, the latest ones;"""
_KEPT_BYTES: Final = 1 << 28
"""in total at most this many bytes."""
_PAGE_BYTES: Final = 4096


class Buffers:
    """A pool of buffers. Threads may share one."""

    def __init__(self) -> None:
        """Begin with none."""
        self._free: list[NDArray[np.uint8]] = []
        self._lock = threading.Lock()

    def lend(self, size: int) -> NDArray[np.uint8]:
        """Memory that comes back to the pool by itself: when the array and all views of it are gone.

        Returns:
            uint8[size, rounded up to whole pages].
        """
        size = -(-size // _PAGE_BYTES) * _PAGE_BYTES
        buffer = self._take_free(size)
        return np.asarray(_Lease(np.empty(size, np.uint8) if buffer is None else buffer, self._give_back))

    def _take_free(self, size: int) -> NDArray[np.uint8] | None:
        with self._lock:
            for index in reversed(range(len(self._free))):
                if len(self._free[index]) == size:
                    return self._free.pop(index)
        return None

    def _give_back(self, buffer: NDArray[np.uint8]) -> None:
        # Arrays may die anywhere, even in `_take_free` when Python collects garbage there: do not wait for the lock.
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._free.append(buffer)
            while len(self._free) > _KEPT or sum(map(len, self._free)) > _KEPT_BYTES:
                del self._free[0]
        finally:
            self._lock.release()


class _Lease:
    """Owns a buffer while it is lent: arrays made of it, and their views, keep it alive."""

    __slots__ = ("__array_interface__", "_buffer", "_give_back")

    def __init__(self, buffer: NDArray[np.uint8], give_back: Callable[[NDArray[np.uint8]], None]) -> None:
        self.__array_interface__: dict[str, Any] = buffer.__array_interface__
        self._buffer = buffer
        self._give_back = give_back

    def __del__(self) -> None:
        self._give_back(self._buffer)
