"""Provides memory for arrays, which is reused once they are freed.

    columns = ColumnBuffers(columns).blank(256)  # {"obs": float32[256, 4], "action": int64[256]}, in one buffer
    array = Buffers().lend(1 << 20)             # uint8[at least 1 << 20]
    values = array[:1000].view("<f4")           # the memory is reused once both are freed

Allocating fresh memory costs as much as copying rows into it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from replay_proto.schema import Column

_KEPT: Final = 32
"""Maximum number of free buffers kept."""
_KEPT_BYTES: Final = 1 << 28
"""Maximum bytes of free buffers kept. More may be free until the pool is asked for memory again."""
_LAYOUTS: Final = 64
"""Maximum number of layouts kept. With several servers, the number of rows from a shard differs in each batch."""
_PAGE_BYTES: Final = 4096
_LINE_BYTES: Final = 64

Blank: TypeAlias = Callable[[int], dict[str, NDArray[Any]]]
"""Returns uninitialized columns for a number of rows; see `ColumnBuffers.blank`."""


class ColumnBuffers:
    """A pool of columns of batches. Thread-safe."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        """Create a pool for batches with these columns: a schema, or `Steps.sampled`."""
        self.columns: Final = columns
        """Dtype and shape of each column."""
        self._buffers = Buffers()
        self._layout = lru_cache(maxsize=_LAYOUTS)(partial(_layout, columns))

    def blank(self, row_count: int) -> dict[str, NDArray[Any]]:
        """Return uninitialized columns in one buffer, by name: ``dtype[row_count, *shape]``."""
        layout = self._layout(row_count)
        record: NDArray[Any] = np.ndarray((), layout, self._buffers.lend(layout.itemsize))
        return {name: record[name] for name in self.columns}


class Part(dict[str, NDArray[Any]]):
    """Columns with some of the rows of larger columns."""

    def __init__(self, whole: Mapping[str, NDArray[Any]], rows: slice) -> None:
        super().__init__((name, column[rows]) for name, column in whole.items())
        self.whole = whole
        """The larger columns."""


class JoinedBuffers:
    """A pool of columns that several readers fill together. Each reader has its own rows in every batch.

    buffers = JoinedBuffers(ColumnBuffers(columns), [128, 64])
    first, second = buffers.blank(0, 128), buffers.blank(1, 64)     # `Part`s of the same columns
    columns = buffers.joined([first, second])                       # the shared columns, with 192 rows

    For use in one thread.
    """

    def __init__(self, pool: ColumnBuffers, row_counts: Sequence[int]) -> None:
        """Share memory of a pool for batches that have ``row_counts[i]`` rows of reader i."""
        *starts, self._row_count = accumulate(row_counts, initial=0)
        self.parts: Final = [slice(start, start + count) for start, count in zip(starts, row_counts, strict=True)]
        """The rows of each reader."""
        self._pool = pool
        self._begun: dict[int, dict[str, NDArray[Any]]] = {}  # the n-th batch, until every reader has its part
        self._given = [0] * len(row_counts)  # batches of which each reader has its part

    def blank(self, reader: int, row_count: int) -> dict[str, NDArray[Any]]:
        """Return a reader's part of its next batch, uninitialized."""
        rows = self.parts[reader]
        if row_count != rows.stop - rows.start:  # the server sent another number of rows than was requested
            return self._pool.blank(row_count)
        number = self._given[reader]
        whole = self._begun.get(number)
        if whole is None:
            whole = self._begun[number] = self._pool.blank(self._row_count)
        self._given[reader] += 1
        if min(self._given) > number:
            del self._begun[number]
        return Part(whole, rows)

    def joined(self, parts: Sequence[Mapping[str, NDArray[Any]]]) -> Mapping[str, NDArray[Any]]:
        """Join one part of each reader to columns. Copies the parts only if they are from different batches.

        This is the case if a part was replaced because its rows were overwritten before they were copied.
        """
        wholes = [part.whole if isinstance(part, Part) else None for part in parts]
        if wholes[0] is not None and all(whole is wholes[0] for whole in wholes):
            return wholes[0]
        joined = self._pool.blank(self._row_count)
        for rows, part in zip(self.parts, parts, strict=True):
            for name, column in joined.items():
                np.copyto(column[rows], part[name])
        return joined


class Buffers:
    """A pool of buffers. Thread-safe."""

    def __init__(self) -> None:
        self._returned: deque[_Loan] = deque(maxlen=_KEPT)  # of arrays that were freed since the last call of `lend`
        self._free: list[_Memory] = []
        self._free_bytes = 0
        self._lock = threading.Lock()

    def lend(self, size: int) -> NDArray[np.uint8]:
        """Lend memory, uint8[size rounded up to whole pages]. It returns when the array and all its views are freed."""
        size = _padded(size, _PAGE_BYTES)
        with self._lock:
            self._take_back()
            for index in range(len(self._free) - 1, -1, -1):
                if self._free[index].size == size:
                    self._free_bytes -= size
                    return np.asarray(_Lease(self._returned, self._free.pop(index)))
        return np.asarray(_Lease(self._returned, _Memory(size)))

    def _take_back(self) -> None:
        while self._returned:
            memory = self._returned.popleft().memory
            self._free.append(memory)
            self._free_bytes += memory.size
        while len(self._free) > _KEPT or self._free_bytes > _KEPT_BYTES:
            self._free_bytes -= self._free.pop(0).size


class _Memory:
    """A buffer with NumPy's array interface."""

    __slots__ = ("array", "interface", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.array = np.empty(size, np.uint8)
        self.interface: dict[str, Any] = self.array.__array_interface__


class _Lease:
    """Owns lent memory; the array and its views keep it alive."""

    __slots__ = ("__array_interface__", "__weakref__", "_loan")

    def __init__(self, returned: deque[_Loan], memory: _Memory) -> None:
        self.__array_interface__ = memory.interface
        # When the lease ends, its loan is appended to `returned`. That runs no Python code, in which the interpreter
        # would handle a Ctrl-C, and lose it, because finalizers cannot raise.
        self._loan = _Loan(self, returned.append)
        self._loan.memory = memory


class _Loan(weakref.ref[_Lease]):
    """A reference to a lease, and its memory."""

    __slots__ = ("memory",)
    memory: _Memory


def _layout(columns: Mapping[str, Column], row_count: int) -> np.dtype[Any]:
    """Describe the columns as fields of one record, each on a new cache line. NumPy creates views of fields quickly."""
    sizes = [_padded(column.row_bytes * row_count, _LINE_BYTES) for column in columns.values()]
    fields: Any = {
        "names": list(columns),
        "formats": [(column.dtype, (row_count, *column.shape)) for column in columns.values()],
        "offsets": [0, *accumulate(sizes)][:-1],
        "itemsize": sum(sizes),
    }
    layout: np.dtype[Any] = np.dtype(fields)
    return layout


def _padded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
