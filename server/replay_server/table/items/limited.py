"""Items that may be drawn a limited number of times; then they stay in the ring, but are no longer drawn.

An item without draws left is `replay_server.backends.index.DEAD_PRIORITY` in the stored priorities, and so stays out of
the draws after a restart. The draws of other items are counted in memory only: a restart begins to count again.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.index import LiveRows
from replay_server.storage.runs import Runs
from replay_server.table.items.items import Items, NewItems, SingleRows, StepCounts, Windows
from replay_server.table.items.step_windows import StepWindows

LEFT_BYTES = 2
"""Bytes per slot."""


class LimitedItems(Items):
    """Counts how many draws each of the other items has left."""

    def __init__(self, items: SingleRows | StepWindows, times: int, slots: int) -> None:
        """Let each of ``items`` be drawn ``times`` times. There are none so far."""
        self._items = items
        self._times = times
        self._left = np.zeros(slots, np.uint16)  # of items that cannot be drawn: 0
        self._drawable = 0
        self.draws_left = 0

    @property
    def counts(self) -> StepCounts | None:
        """Counts of live rows of a table of steps; an anchor without draws left is not counted as an anchor."""
        return self._items.counts

    def left(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: how many draws live items have left. keys: int64[n]."""
        return self._left[keys % len(self._left)].astype(np.int64)

    def count(self, live_rows: int) -> int:
        """Return the number of items with draws left."""
        return self._drawable

    def check(self, runs: Runs | None) -> None:
        """Check new rows like the other items."""
        self._items.check(runs)

    def priorities_of(self, row_count: int, runs: Runs | None) -> int:
        """Return as many as the other items."""
        return self._items.priorities_of(row_count, runs)

    def arrive(self, first: int, row_count: int, runs: Runs | None, oldest: int) -> NewItems:
        """Add rows, and let the items that they complete be drawn."""
        new = self._items.arrive(first, row_count, runs, oldest)
        self._add(new.keys)
        return new

    def leave(self, first: int, end: int) -> NDArray[np.int64]:
        """Remove evicted rows, and return the items that had draws left and can no longer be drawn."""
        gone = self._items.leave(first, end)
        left = self.left(gone)
        gone = gone[left > 0]
        self.draws_left -= int(left.sum())
        self._remove(gone)
        return gone

    def draw(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count draws of live items, which may be repeated, and return those that had their last one. keys: int64[n].

        Items that can no longer be drawn are ignored.
        """
        drawn, times = np.unique(keys, return_counts=True)
        left = self.left(drawn)
        times = np.minimum(times, left)
        self._left[drawn % len(self._left)] = left - times
        self.draws_left -= int(times.sum())
        spent: NDArray[np.int64] = drawn[(times == left) & (left > 0)]
        self._remove(spent)
        self._items.retire(spent)
        return spent

    def rows_of_open_windows(self, oldest: int) -> int:
        """Return as many as the other items."""
        return self._items.rows_of_open_windows(oldest)

    def blank(self) -> Self:
        """Return items of the same kind, without rows."""
        return type(self)(self._items.blank(), self._times, len(self._left))

    def rebuild(self, live: LiveRows, links: NDArray[np.uint64], is_dead: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Find the items among stored rows; those without a priority have no draws left."""
        drawable = self._items.rebuild(live, links, is_dead)
        if drawable is None:
            drawable = np.ones(live.size, np.bool_)
        self._items.retire(live.oldest + np.flatnonzero(drawable & is_dead))
        drawable &= ~is_dead
        self._add(live.oldest + np.flatnonzero(drawable))
        return drawable

    def windows(self, keys: NDArray[np.int64]) -> Windows | None:
        """Return the windows of drawn items; None if each is a single row."""
        return self._items.windows(keys)

    def _add(self, keys: NDArray[np.int64]) -> None:
        self._left[keys % len(self._left)] = self._times
        self._drawable += len(keys)
        self.draws_left += len(keys) * self._times

    def _remove(self, keys: NDArray[np.int64]) -> None:
        self._left[keys % len(self._left)] = 0
        self._drawable -= len(keys)
