"""Copies rows: how to copy each in one piece, and many rows with several threads.

A single thread cannot saturate the memory bandwidth, and a batch of image sequences can have tens of megabytes.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array, flat_rows

_THREADS: Final = min(4, os.cpu_count() or 1)
_BYTES_EACH: Final = 4 << 20
"""Minimum bytes that each thread copies. That takes 0.5 ms, ten times as long as starting the thread."""


class CurrentValues:
    """The current values of a mutable column by slot, which are in one of two places; see `SameHost`."""

    def __init__(self, places: Array, versions: NDArray[np.int64]) -> None:
        """Copy from ``places``, ``dtype[2 * slots, ...]``, as int64[slots] of ``versions`` say."""
        self._places = places
        self._versions = versions

    def take(self, slots: NDArray[np.int64], axis: int = 0, out: Array | None = None, mode: str = "clip") -> Array:
        """Copy the values of these slots, like `numpy.ndarray.take`."""
        places = 2 * slots + (self._versions.take(slots, mode="clip") & 1)
        return self._places.take(places, axis=axis, out=out, mode="clip")

    def as_bytes(self) -> CurrentValues:
        """The same values as uint8[row_bytes]."""
        return CurrentValues(flat_rows(self._places).view(np.uint8), self._versions)


RowSource: TypeAlias = NDArray[Any] | CurrentValues
"""Values by slot, from which `take` copies."""


def bytes_of(column: RowSource) -> RowSource:
    """View a column by slot as uint8[slots, row_bytes]."""
    return column.as_bytes() if isinstance(column, CurrentValues) else flat_rows(column).view(np.uint8)


def in_long_rows(column: Array) -> Array:
    """View ``dtype[n, *shape]`` with at most two dimensions, so that `take` copies each row in one piece."""
    return column if column.ndim <= 2 else flat_rows(column)


def copy_rows(source: RowSource, rows: NDArray[np.int64], into: NDArray[np.uint8]) -> None:
    """Copy rows, with several threads if that is faster: uint8[n, row_bytes] into uint8[m, row_bytes].

    ``rows``, int64[m], are the indices of the rows to copy; all must be in range.
    """
    parts = min(_THREADS, into.nbytes // _BYTES_EACH)
    if parts < 2:
        _copy(source, rows, into)
        return
    ends = [len(rows) * part // parts for part in range(parts + 1)]
    failures: list[Exception] = []

    def copy_part(start: int, end: int) -> None:
        try:
            _copy(source, rows[start:end], into[start:end])
        except Exception as error:
            failures.append(error)

    threads: list[threading.Thread] = []
    try:
        for part in itertools.pairwise(ends[1:]):
            threads.append(threading.Thread(target=copy_part, args=part, name="replay-copies"))
            threads[-1].start()
        _copy(source, rows[: ends[1]], into[: ends[1]])
    finally:
        for thread in threads:
            if thread.ident is not None:  # it could be started
                thread.join()
    if failures:
        raise failures[0]  # rows are missing in the output


def _copy(source: RowSource, rows: NDArray[np.int64], into: NDArray[np.uint8]) -> None:
    # With any mode but "raise", take() writes directly to its output.
    source.take(rows, axis=0, out=into, mode="clip")
