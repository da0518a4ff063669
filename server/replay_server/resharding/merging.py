"""Merges the rows of a table's old shards into one order, oldest first, piece by piece.

Within a shard, rows are ordered by key. Shards have no common clock, so they are merged in proportion to their numbers
of rows: row i of a shard with n rows is at the position (i + 1/2) / n. Rows at equal positions are ordered by shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Piece(NamedTuple):
    """Consecutive rows of the merged order."""

    ranges: Sequence[range]
    """For each old shard, its rows in this piece, counted from its oldest row."""
    order: NDArray[np.intp]
    """int64[n]: the rows of all `ranges`, concatenated, from oldest to newest."""

    @property
    def shards(self) -> NDArray[np.intp]:
        """int64[n]: the old shard of each row, from oldest to newest."""
        return np.repeat(np.arange(len(self.ranges)), [len(rows) for rows in self.ranges])[self.order]


def pieces(sizes: Sequence[int], rows_at_once: int) -> Iterator[Piece]:
    """Yield all rows of shards with these numbers of rows, in pieces of about ``rows_at_once`` rows."""
    count = -(-sum(sizes) // rows_at_once)
    for number in range(count):
        ranges = [range(_rows_before(size, number, count), _rows_before(size, number + 1, count)) for size in sizes]
        positions = [(np.arange(rows.start, rows.stop) + 0.5) / size for rows, size in zip(ranges, sizes, strict=True)]
        yield Piece(ranges, np.argsort(np.concatenate(positions), kind="stable"))


def _rows_before(size: int, number: int, count: int) -> int:
    """Return how many rows of a shard are before the position ``number / count``."""
    return max(0, -((count - 2 * number * size) // (2 * count)))
