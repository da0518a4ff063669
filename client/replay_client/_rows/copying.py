"""Copies rows: how to copy each in one piece, and many rows with several threads.

A single thread cannot saturate the memory bandwidth, and a batch of image sequences can have tens of megabytes.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import Final

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array, flat_rows

_THREADS: Final = min(4, os.cpu_count() or 1)
_BYTES_EACH: Final = 4 << 20
"""Minimum bytes that each thread copies. That takes 0.5 ms, ten times as long as starting the thread."""


def in_long_rows(column: Array) -> Array:
    """View ``dtype[n, *shape]`` with at most two dimensions, so that `take` copies each row in one piece."""
    return column if column.ndim <= 2 else flat_rows(column)


def copy_rows(source: NDArray[np.uint8], rows: NDArray[np.int64], into: NDArray[np.uint8]) -> None:
    """Copy rows, with several threads if that is faster.

    Args:
        source: uint8[n, row_bytes].
        rows: int64[m], indices of the rows to copy; all must be in range.
        into: uint8[m, row_bytes], the output.
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


def _copy(source: NDArray[np.uint8], rows: NDArray[np.int64], into: NDArray[np.uint8]) -> None:
    # With any mode but "raise", take() writes directly to its output.
    source.take(rows, axis=0, out=into, mode="clip")
