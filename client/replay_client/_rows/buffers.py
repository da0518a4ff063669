"""Memory for arrays, reused once they are freed.

    columns = ColumnBuffers(columns).blank(256)  # {"obs": float32[256, 4], "action": int64[256]}, in one buffer
    array = Buffers().lend(1 << 20)             # uint8[at least 1 << 20]
    values = array[:1000].view("<f4")           # the memory is reused once both are freed

Allocating fresh memory costs as much as copying rows into it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from replay_proto.schema import Column

_KEPT: Final = 32
"""Maximum number of free buffers kept."""
_KEPT_BYTES: Final = 1 << 28
"""Maximum bytes of free buffers kept."""
_PAGE_BYTES: Final = 4096
_LINE_BYTES: Final = 64


class ColumnBuffers:
    """A pool of columns of batches. Thread-safe."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        """Create a pool for batches with these columns: a schema, or `Steps.sampled`."""
        self._columns = columns
        self._buffers = Buffers()
        self._layout = lru_cache(maxsize=1)(partial(_layout, columns))

    def blank(self, row_count: int) -> dict[str, NDArray[Any]]:
        """Return uninitialized columns in one buffer, by name: ``dtype[row_count, *shape]``."""
        layout = self._layout(row_count)
        record: NDArray[Any] = np.ndarray((), layout, self._buffers.lend(layout.itemsize))
        return {name: record[name] for name in self._columns}


class Buffers:
    """A pool of buffers. Thread-safe."""

    def __init__(self) -> None:
        self._free: list[_Memory] = []
        self._lock = threading.Lock()

    def lend(self, size: int) -> NDArray[np.uint8]:
        """Lend memory, which returns to the pool when the array and all its views are freed.

        Returns:
            uint8[size, rounded up to whole pages].
        """
        size = _rounded_up(size, _PAGE_BYTES)
        return np.asarray(_Lease(self, self._take_free(size) or _Memory(size)))

    def _take_free(self, size: int) -> _Memory | None:
        with self._lock:
            for index in reversed(range(len(self._free))):
                if self._free[index].size == size:
                    return self._free.pop(index)
        return None

    def give_back(self, memory: _Memory) -> None:
        """Return a lent buffer to the pool."""
        # Do not wait for the lock: this thread may hold it, if garbage collection in `_take_free` frees an array.
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._free.append(memory)
            while len(self._free) > _KEPT or sum(each.size for each in self._free) > _KEPT_BYTES:
                del self._free[0]
        finally:
            self._lock.release()


class _Memory:
    """A buffer with NumPy's array interface."""

    __slots__ = ("array", "interface", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.array = np.empty(size, np.uint8)
        self.interface: dict[str, Any] = self.array.__array_interface__


class _Lease:
    """Owns lent memory; the array and its views keep it alive."""

    __slots__ = ("__array_interface__", "_memory", "_pool")

    def __init__(self, pool: Buffers, memory: _Memory) -> None:
        self.__array_interface__ = memory.interface
        self._memory = memory
        self._pool = pool

    def __del__(self) -> None:
        self._pool.give_back(self._memory)


def _layout(columns: Mapping[str, Column], row_count: int) -> np.dtype[Any]:
    """Columns as fields of one record, which NumPy quickly turns into views; each starts on a new cache line."""
    sizes = [_rounded_up(column.row_bytes * row_count, _LINE_BYTES) for column in columns.values()]
    fields: Any = {
        "names": list(columns),
        "formats": [(column.dtype, (row_count, *column.shape)) for column in columns.values()],
        "offsets": [0, *accumulate(sizes)][:-1],
        "itemsize": sum(sizes),
    }
    layout: np.dtype[Any] = np.dtype(fields)
    return layout


def _rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
