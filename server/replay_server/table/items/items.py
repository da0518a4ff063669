"""The interface of what a table draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.index import LiveRows
from replay_server.storage.runs import Runs


class NewItems(NamedTuple):
    """Items that an insert completes."""

    keys: NDArray[np.int64]
    """int64[n]."""
    places: NDArray[np.int64] | slice
    """Where their priorities are among those that the insert gives."""


class Windows(NamedTuple):
    """The windows of drawn anchors."""

    keys: NDArray[np.int64]
    """int64[r]: rows of each window, oldest first, window after window."""
    before: NDArray[np.int32]
    """int32[batch]: rows before each anchor."""
    after: NDArray[np.int32]
    """int32[batch]: rows after each anchor."""
    ends: NDArray[np.uint8]
    """uint8[batch]: how the episode stands after the last row of each window."""

    def firsts(self, before: int) -> NDArray[np.int64]:
        """int64[batch]: position in `keys` of the first row of each window, at most ``before`` before its anchor."""
        anchors = np.cumsum(self.before + self.after + 1, dtype=np.int64) - 1 - self.after
        firsts: NDArray[np.int64] = anchors - np.minimum(self.before, before)
        return firsts


class StepCounts(NamedTuple):
    """Live rows by what they are."""

    drawable: int
    """Anchors with a complete window."""
    pending: int
    """Anchors whose window is not complete yet."""
    broken: int
    """Anchors that can never be drawn again."""
    closing: int
    """Rows that close an episode."""


class Items(ABC):
    """Items of a table, each named by the key of a row. Only these rows have priorities, and can be drawn."""

    @abstractmethod
    def count(self, live_rows: int) -> int:
        """Number of items among the live rows, of which there are ``live_rows``."""

    @abstractmethod
    def check(self, runs: Runs | None) -> None:
        """Check that new rows may come next.

        Raises:
            FieldError: they continue no episode, or skip or repeat steps.
        """

    @abstractmethod
    def priorities_of(self, row_count: int, runs: Runs | None) -> int:
        """Number of priorities that an insert of these rows may give."""

    @abstractmethod
    def arrive(self, first: int, row_count: int, runs: Runs | None, oldest: int) -> NewItems:
        """Take new rows, which become live.

        Args:
            first: key of the first one.
            row_count: number of rows.
            runs: where they come from.
            oldest: key of the oldest live row.
        """

    @abstractmethod
    def leave(self, first: int, end: int) -> NDArray[np.int64]:
        """Take away the oldest live rows, from ``first`` up to ``end``.

        Returns:
            int64[n]: keys of the items that are gone.
        """

    @abstractmethod
    def reset(self) -> None:
        """Forget where streams stand, because all rows are gone."""

    @abstractmethod
    def rebuild(self, live: LiveRows, links: NDArray[np.uint64]) -> NDArray[np.bool_] | None:
        """Begin with the live rows of a stored table.

        Args:
            live: the rows.
            links: uint64[size, words]: their links, oldest first; see `Runs.links`.

        Returns:
            bool[size]: which of them are items; None: all.
        """

    @abstractmethod
    def windows(self, keys: NDArray[np.int64]) -> Windows | None:
        """The windows of drawn items; None: the rows themselves. keys: int64[batch]."""

    @property
    @abstractmethod
    def counts(self) -> StepCounts | None:
        """Live rows of a table of steps by what they are; None for other tables."""
