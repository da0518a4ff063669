"""Merges the rows of a table's old shards into one order, oldest first, piece by piece.

Within a shard, rows are ordered by key. Shards have no common clock, so they are merged in proportion to their numbers
of rows: row i of a shard with n rows is at the position (i + 1/2) / n. Rows at equal positions are ordered by shard.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Piece(NamedTuple):
    """Consecutive rows of the merged order, oldest first."""

    shards: NDArray[np.intp]
    """int64[n]: the old shard of each row."""
    rows: NDArray[np.intp]
    """int64[n]: the number of each row in its old shard, from the oldest one on."""
    positions: NDArray[np.float64]
    """float64[n]: the position of each row, from 0 to 1."""
    end: float
    """Rows of later pieces have at least this position."""


def pieces(sizes: Sequence[int], rows_at_once: int) -> Iterator[Piece]:
    """Yield all rows of shards with these numbers of rows, in pieces of about ``rows_at_once`` rows."""
    count = -(-sum(sizes) // rows_at_once)
    for number in range(count):
        ranges = [range(_rows_before(size, number, count), _rows_before(size, number + 1, count)) for size in sizes]
        shards = np.repeat(np.arange(len(sizes)), [len(rows) for rows in ranges])
        rows = np.concatenate([np.arange(rows.start, rows.stop) for rows in ranges])
        positions = (rows + 0.5) / np.array(sizes)[shards]
        order = np.argsort(positions, kind="stable")
        end = (number + 1) / count if number < count - 1 else math.inf
        yield Piece(shards[order], rows[order], positions[order], end)


def _rows_before(size: int, number: int, count: int) -> int:
    """Return how many rows of a shard are before the position ``number / count``."""
    return max(0, -((count - 2 * number * size) // (2 * count)))
