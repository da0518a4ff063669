"""The items of a plain table: every live row can be drawn."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.index import LiveRows
from replay_server.storage.runs import Runs
from replay_server.table.items.items import Items, NewItems


class SingleRows(Items):
    """The items of a plain table."""

    counts = None

    def count(self, live_rows: int) -> int:
        """Return the number of live rows, because each is an item."""
        return live_rows

    def check(self, runs: Runs | None) -> None:
        """Accept any rows."""

    def priorities_of(self, row_count: int, runs: Runs | None) -> int:
        """Return the number of rows, because each needs a priority."""
        return row_count

    def arrive(self, first: int, row_count: int, runs: Runs | None, oldest: int) -> NewItems:
        """Return all new rows."""
        return NewItems(np.arange(first, first + row_count), slice(None))

    def leave(self, first: int, end: int) -> NDArray[np.int64]:
        """Return all evicted rows."""
        return np.arange(first, end)

    def rows_of_open_windows(self, oldest: int) -> int:
        """Return 0."""
        return 0

    def blank(self) -> Self:
        """Return this object, which has no state."""
        return self

    def rebuild(self, live: LiveRows, links: NDArray[np.uint64]) -> None:
        """Return None: all live rows are items."""

    def windows(self, keys: NDArray[np.int64]) -> None:
        """Return None: each item is a single row."""
