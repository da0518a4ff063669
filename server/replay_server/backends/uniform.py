"""The backend ``uniform``: every live row is drawn with probability 1 / size, whatever its priority.

Priorities are kept and counted all the same: a learner that reports them can be compared with a prioritized one
without being changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.index import DEAD_PRIORITY, MOST_ROWS, Drawn, LiveRows
from replay_server.backends.structures import extremes
from replay_server.backends.structures.invariants import require
from replay_server.backends.structures.ring import bury_all_but, draw_evenly
from replay_server.kernels.compile import as_kernel_input, kernel
from replay_server.kernels.prefetch import prefetch


@dataclass(frozen=True)
class UniformParameters:
    """Nothing to choose."""


@kernel
def _write(
    keys: NDArray[np.int64],
    new_priorities: NDArray[np.float64],
    priorities: NDArray[np.float64],
    largest: NDArray[np.float64],
    smallest: NDArray[np.float64],
    block_starts: NDArray[np.int64],
) -> int:
    """Store priorities, bring the extremes up to date, and return by how much the number of rows grew."""
    count = len(keys)
    grown = 0
    slots = np.empty(count, dtype=np.int64)
    old_priorities = np.empty(count, dtype=np.float64)
    for i in range(count):
        slot = keys[i] % len(priorities)
        slots[i] = slot
        prefetch(priorities, slot)
        extremes.prefetch_block(largest, slot)
        extremes.prefetch_block(smallest, slot)
    for i in range(count):
        slot = slots[i]
        old_priorities[i] = priorities[slot]
        priorities[slot] = new_priorities[i]
        grown += int(new_priorities[i] >= 0.0) - int(old_priorities[i] >= 0.0)
    extremes.follow(priorities, largest, block_starts, extremes.LARGEST, extremes.NOT_BELOW_ZERO, slots, old_priorities)
    extremes.follow(
        priorities, smallest, block_starts, extremes.SMALLEST, extremes.NOT_BELOW_ZERO, slots, old_priorities
    )
    return grown


class UniformIndex:
    """Draws all rows alike, and keeps their priorities. A `PriorityIndex`."""

    name: ClassVar[str] = "uniform"
    most_rows: ClassVar[int] = MOST_ROWS
    most_bytes_per_slot: ClassVar[float] = 2 * 8 / 63
    """Two trees of fan-out 64 over extremes."""
    Parameters: ClassVar[type[UniformParameters]] = UniformParameters

    def __init__(self, parameters: UniformParameters, priorities: NDArray[np.float64], capacity: int) -> None:
        """Make an index without rows; call `rebuild` before anything else.

        Args:
            parameters: none; there for the sake of the other backends.
            priorities: float64[slots], the table's priority array, written to by this index alone.
            capacity: the most rows that are live at once.
        """
        self.parameters = parameters
        self.capacity = capacity
        self._priorities = np.asarray(priorities)
        self._size = 0
        self._block_starts = extremes.block_starts(len(priorities))
        self._largest = extremes.empty_tree(self._block_starts)
        self._smallest = extremes.empty_tree(self._block_starts)

    @property
    def priority_limit(self) -> float:
        """``inf``: any finite priority will do."""
        return math.inf

    @property
    def total_mass(self) -> float:
        """Number of rows: each has a mass of 1."""
        return float(self._size)

    @property
    def largest_priority(self) -> float:
        """Largest priority of a live row; 0.0 when there is none."""
        return extremes.top(self._largest, self._block_starts, extremes.LARGEST)

    @property
    def smallest_priority(self) -> float:
        """Smallest priority of a live row; 0.0 when there is none."""
        return extremes.top(self._smallest, self._block_starts, extremes.SMALLEST)

    @property
    def nbytes(self) -> int:
        """Memory this index reserves, in bytes, without the priority array."""
        return self._largest.nbytes + self._smallest.nbytes

    def write(self, keys: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Set the priorities of rows, whether they are new or already there."""
        keys, priorities = as_kernel_input(keys), as_kernel_input(priorities)
        self._size += _write(keys, priorities, self._priorities, self._largest, self._smallest, self._block_starts)

    def clear(self, keys: NDArray[np.int64]) -> None:
        """Forget rows that are no longer live."""
        self.write(keys, np.full(len(keys), DEAD_PRIORITY))

    def rebuild(self, live: LiveRows) -> None:
        """Start anew from the priority array: only the rows of ``live`` count, other slots become dead."""
        bury_all_but(live, self._priorities)
        self._recompute()

    def _recompute(self) -> None:
        """Compute everything from the priority array as it is."""
        self._size = int(np.count_nonzero(self._priorities >= 0.0))
        extremes.gather(self._priorities, self._largest, self._block_starts, extremes.LARGEST, extremes.NOT_BELOW_ZERO)
        extremes.gather(
            self._priorities, self._smallest, self._block_starts, extremes.SMALLEST, extremes.NOT_BELOW_ZERO
        )

    def draw(self, fractions: NDArray[np.float64], live: LiveRows) -> Drawn:
        """Return the rows that lie at these fractions of all live rows."""
        return draw_evenly(fractions, live)

    def masses(self, priorities: NDArray[np.float64], ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return float64[n]: 1 for every row."""
        return np.ones(len(priorities))

    def smallest_probability(self, live: LiveRows) -> float:
        """Probability of each live row: 1 / size."""
        return 1.0 / live.size

    def check(self) -> None:
        """Count rows and find extremes anew, and compare them with those kept.

        Raises:
            AssertionError: if one differs.
        """
        fresh = UniformIndex(self.parameters, self._priorities, self.capacity)
        fresh._recompute()
        require(fresh._size == self._size, "the size is the number of rows that are not dead")
        require(np.array_equal(fresh._largest, self._largest), "largest priorities are those of their blocks")
        require(np.array_equal(fresh._smallest, self._smallest), "smallest priorities are those of their blocks")
