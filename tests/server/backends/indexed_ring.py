"""A ring of priorities with an index and an oracle."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_server.backends import DEAD_PRIORITY, Drawn, LiveRows, make_index

from tests.server.backends.oracles import Expected, oracle_for
from tests.support.invariants import check_index


class IndexedRing:
    """Inserts, evicts, updates and draws, and checks the index after each operation."""

    def __init__(
        self,
        backend: str,
        capacity: int,
        slack: int = 5,
        given: Mapping[str, float] | None = None,
        checked: bool = True,
        first_key: int = 0,
    ) -> None:
        """Create an empty ring of ``capacity + slack`` slots."""
        self.backend = backend
        self.capacity = capacity
        self.slots = capacity + slack
        self.slack = slack
        self.checked = checked
        self.priorities = np.full(self.slots, DEAD_PRIORITY)
        self.index = make_index(backend, given or {}, self.priorities)
        self.oracle = oracle_for(self.index.parameters)
        self.truth: dict[int, float] = {}
        self.first_key = self.inserted = first_key
        self.rebuild()

    @property
    def live(self) -> LiveRows:
        """The live rows."""
        return LiveRows(oldest=self.inserted - len(self.truth), size=len(self.truth), slots=self.slots)

    def insert(self, priorities: ArrayLike) -> None:
        """Add new rows in parts of at most the slack, and evict the oldest rows that no longer fit."""
        given = np.asarray(priorities, dtype=np.float64)
        for start in range(0, len(given), self.slack):
            self._insert_piece(given[start : start + self.slack])

    def _insert_piece(self, priorities: NDArray[np.float64]) -> None:
        keys = np.arange(self.inserted, self.inserted + len(priorities), dtype=np.int64)
        self.index.write(keys, priorities)
        self.inserted += len(keys)
        self.truth.update(zip(keys.tolist(), priorities.tolist(), strict=True))
        evicted = np.arange(
            self.inserted - len(self.truth), max(self.inserted - self.capacity, self.first_key), dtype=np.int64
        )
        if len(evicted):
            self.index.clear(evicted)
            for key in evicted.tolist():
                del self.truth[key]
        self.check()

    def update(self, keys: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of live rows."""
        written = np.asarray(keys, dtype=np.int64)
        given = np.asarray(priorities, dtype=np.float64)
        self.index.write(written, given)
        self.truth.update(zip(written.tolist(), given.tolist(), strict=True))
        self.check()

    def update_all(self, priorities: ArrayLike) -> None:
        """Set the priorities of all live rows, oldest first."""
        self.update(sorted(self.truth), priorities)

    def reset(self) -> None:
        """Remove all rows; keys continue counting."""
        gone, self.index = self.live, self.index.blank()
        self.index.forget(gone)
        self.truth.clear()
        self.check()

    def rebuild(self) -> None:
        """Rebuild the index from the priority array, like a restarted server."""
        self.index.rebuild(self.live)
        self.check()

    def draw(self, fractions: ArrayLike) -> Drawn:
        """Draw rows, and compare them with the oracle."""
        points = np.asarray(fractions, dtype=np.float64)
        drawn = self.index.draw(points, self.live)
        self.expected().require_draw(points, drawn.keys, drawn.probabilities)
        return drawn

    def expected(self) -> Expected:
        """Return the oracle's answers for the live rows, of which there must be at least one."""
        return Expected(self.oracle, self.truth, self.slots)

    def check(self) -> None:
        """Check the index's invariants, and compare the priority array with the true priorities."""
        if not self.checked:
            return
        check_index(self.index)
        expected = np.full(self.slots, DEAD_PRIORITY)
        for key, priority in self.truth.items():
            expected[key % self.slots] = priority
        np.testing.assert_array_equal(self.priorities, expected)
