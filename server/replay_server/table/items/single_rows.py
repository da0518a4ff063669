"""Items of a table of plain rows: every live row is one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.index import LiveRows
from replay_server.storage.runs import Runs
from replay_server.table.items.items import Items, NewItems


class SingleRows(Items):
    """Every live row can be drawn."""

    counts = None

    def count(self, live_rows: int) -> int:
        """All."""
        return live_rows

    def check(self, runs: Runs | None) -> None:
        """Accept any rows."""

    def priorities_of(self, row_count: int, runs: Runs | None) -> int:
        """One for each row."""
        return row_count

    def arrive(self, first: int, row_count: int, runs: Runs | None, oldest: int) -> NewItems:
        """Every new row is an item."""
        return NewItems(np.arange(first, first + row_count), slice(None))

    def leave(self, first: int, end: int) -> NDArray[np.int64]:
        """Every row that leaves was an item."""
        return np.arange(first, end)

    def reset(self) -> None:
        """Do nothing."""

    def rebuild(self, live: LiveRows, links: NDArray[np.uint64]) -> None:
        """All."""

    def windows(self, keys: NDArray[np.int64]) -> None:
        """The rows themselves."""
