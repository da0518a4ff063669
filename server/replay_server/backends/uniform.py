"""The backend ``uniform``: every live row is drawn with probability 1 / size, whatever its priority.

Priorities are still stored, so a learner that updates them works unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replay_server.backends.index import Drawn, LiveRows, PriorityIndex, draw_evenly
from replay_server.backends.structures import extremes
from replay_server.kernels.compile import Floats, Integers, as_kernel_input, kernel
from replay_server.kernels.prefetch import prefetch


@dataclass(frozen=True)
class UniformParameters:
    """No parameters."""


@kernel
def _write(
    keys: Integers,
    new_priorities: Floats,
    priorities: Floats,
    largest: Floats,
    smallest: Floats,
    block_starts: Integers,
) -> int:
    """Store priorities and update the extremes; return rows added minus rows removed."""
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


class UniformIndex(PriorityIndex):
    """Draws rows uniformly, and stores their priorities."""

    name = "uniform"
    most_bytes_per_slot = 2 * 8 / 63
    """Two trees of extremes with fan-out 64."""
    Parameters = UniformParameters

    def __init__(self, parameters: UniformParameters, priorities: Floats) -> None:
        """Create an empty index; see `PriorityIndex`."""
        super().__init__(parameters, priorities)
        self._size = 0
        self._block_starts = extremes.block_starts(len(priorities))
        self._largest = extremes.empty_tree(self._block_starts)
        self._smallest = extremes.empty_tree(self._block_starts)

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

    def write(self, keys: Integers, priorities: Floats) -> None:
        """Set the priorities of new or existing rows."""
        keys, priorities = as_kernel_input(keys), as_kernel_input(priorities)
        self._size += _write(keys, priorities, self._priorities, self._largest, self._smallest, self._block_starts)

    def _recompute(self, live: LiveRows) -> None:
        self._size = int(np.count_nonzero(self._priorities >= 0.0))
        extremes.gather(self._priorities, self._largest, self._block_starts, extremes.LARGEST, extremes.NOT_BELOW_ZERO)
        extremes.gather(
            self._priorities, self._smallest, self._block_starts, extremes.SMALLEST, extremes.NOT_BELOW_ZERO
        )

    def draw(self, fractions: Floats, live: LiveRows) -> Drawn:
        """Draw uniformly: a fraction of 0 selects the oldest row, and a fraction close to 1 the newest."""
        return draw_evenly(fractions, live)

    def masses(self, priorities: Floats, ranks: Integers) -> Floats:
        """Return float64[n]: 1 for every row."""
        return np.ones(len(priorities))

    def smallest_probability(self, live: LiveRows) -> float:
        """Return the probability of each live row: 1 / size."""
        return 1.0 / live.size
