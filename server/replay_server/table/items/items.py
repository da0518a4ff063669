"""The interface that decides which rows of a table can be drawn, and what a draw returns for each.

An item is what one draw returns: a row, or in a table of steps a window of rows. Each item belongs to one row, and has
that row's key and priority. As rows arrive and leave, the table asks an `Items` which items became complete, and which
can no longer be drawn.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.index import LiveRows
from replay_server.storage.runs import Runs


class NewItems(NamedTuple):
    """Items that an insert completes and that can now be drawn."""

    keys: NDArray[np.int64]
    """int64[n]: key of each item."""
    places: NDArray[np.int64] | slice
    """int64[n]: index of each item's priority among the priorities of the insert."""


class Windows(NamedTuple):
    """The windows of drawn anchors."""

    keys: NDArray[np.int64]
    """int64[r]: keys of the rows of all windows, window by window; oldest first within a window."""
    before: NDArray[np.int32]
    """int32[batch]: number of rows before each anchor."""
    after: NDArray[np.int32]
    """int32[batch]: number of rows after each anchor."""
    ends: NDArray[np.uint8]
    """uint8[batch]: whether the last row of each window closes its episode, and how, as in `Runs.ends`."""

    def in_batches(self, batch_size: int) -> list[Windows]:
        """Split the windows into batches of this size."""
        if len(self.before) == batch_size:
            return [self]
        ends = np.cumsum(self.before + self.after + 1, dtype=np.int64)[batch_size - 1 :: batch_size].tolist()
        batches = []
        for number, (first, end) in enumerate(pairwise([0, *ends])):
            windows = slice(number * batch_size, (number + 1) * batch_size)
            batches.append(Windows(self.keys[first:end], self.before[windows], self.after[windows], self.ends[windows]))
        return batches

    def firsts(self, before: int) -> NDArray[np.int64]:
        """Return int64[batch]: for each anchor, the index in `keys` of the row ``before`` positions earlier.

        If the window begins later, this is the index of its first row.
        """
        anchors = np.cumsum(self.before + self.after + 1, dtype=np.int64) - 1 - self.after
        firsts: NDArray[np.int64] = anchors - np.minimum(self.before, before)
        return firsts


class StepCounts(NamedTuple):
    """Numbers of live anchors in three states, of live closing rows, and of anchors that were lost."""

    drawable: int
    """Anchors with a complete window."""
    pending: int
    """Anchors that wait for later rows of their window."""
    broken: int
    """Anchors that can never be drawn (again), because earlier rows of their window are missing."""
    closing: int
    """Rows that close an episode."""
    lost: int
    """Anchors that were evicted before their window was complete, since these items began."""


class Items(ABC):
    """The items of a table, each identified by the key of its row. Rows without an item have no priority."""

    draws_left: float = math.inf
    """Number of draws that all items have left together; infinite unless the table limits them."""

    @abstractmethod
    def count(self, live_rows: int) -> int:
        """Return the number of items; ``live_rows`` is the number of live rows."""

    @abstractmethod
    def check(self, runs: Runs | None) -> None:
        """Check that rows with these runs may be inserted next.

        Raises:
            FieldError: a run neither continues the current episode of its stream nor begins another episode.
        """

    @abstractmethod
    def priorities_of(self, row_count: int, runs: Runs | None) -> int:
        """Return how many priorities an insert of these rows must have if it has any."""

    @abstractmethod
    def arrive(self, first: int, row_count: int, runs: Runs | None, oldest: int) -> NewItems:
        """Add rows that become live, from the key ``first`` on, and return the items that they complete.

        ``oldest`` is the key of the oldest live row.
        """

    @abstractmethod
    def leave(self, first: int, end: int) -> NDArray[np.int64]:
        """Remove evicted rows: the keys from ``first``, the oldest live one, up to but excluding ``end``.

        Return int64[n]: keys of the items that can no longer be drawn.
        """

    @abstractmethod
    def rows_of_open_windows(self, oldest: int) -> int:
        """Return how many rows a whole window of each unfinished episode takes; 0 if items are single rows.

        Episodes without a live row, from the key ``oldest`` on, do not count.
        """

    @abstractmethod
    def blank(self) -> Self:
        """Return the items of the same kind of table, without rows. May run in any thread."""

    @abstractmethod
    def rebuild(
        self, live: LiveRows, links: NDArray[np.uint64], is_dead: NDArray[np.bool_]
    ) -> NDArray[np.bool_] | None:
        """Find the items among the live rows of a stored table, when the table is opened.

        ``links``, uint64[size, words], are those of these rows, oldest first; see `Runs.links`. ``is_dead`` is
        bool[size]: which have no priority. Return bool[size]: which live rows have a drawable item; None if all have.
        """

    @abstractmethod
    def windows(self, keys: NDArray[np.int64]) -> Windows | None:
        """Return the windows of drawn items; None if each item is a single row. keys: int64[batch]."""

    @property
    @abstractmethod
    def counts(self) -> StepCounts | None:
        """Counts of live rows of a table of steps; None for other tables."""


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

    def retire(self, keys: NDArray[np.int64]) -> None:
        """Do nothing."""

    def rebuild(self, live: LiveRows, links: NDArray[np.uint64], is_dead: NDArray[np.bool_]) -> None:
        """Return None: all live rows are items."""

    def windows(self, keys: NDArray[np.int64]) -> None:
        """Return None: each item is a single row."""
