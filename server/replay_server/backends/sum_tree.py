"""The backend ``sum_tree``: proportional prioritization (Schaul et al. 2016, arXiv:1511.05952, section 3.3).

P(i) = mass_i / sum of all masses (equation 1), where mass_i = min(priority_i + epsilon, max_priority) ** alpha.
"""

from __future__ import annotations

import math
from bisect import bisect
from dataclasses import dataclass

import numpy as np
from replay_proto.errors import FieldError

from replay_server.backends.index import (
    DEAD_PRIORITY,
    FIRST_PRIORITY,
    LEAST_PROBABILITY,
    Drawn,
    LiveRows,
    PriorityIndex,
    draw_evenly,
    key_in_slot,
    require_not_negative,
    require_positive,
)
from replay_server.backends.structures import extremes, sums
from replay_server.kernels.compile import Floats, Integers, aligned_full, as_kernel_input, kernel
from replay_server.kernels.prefetch import prefetch

MASS_LIMIT = 2.0**900
"""Largest mass of a row; 2^100 such rows still have a finite sum."""


@dataclass(frozen=True)
class SumTreeParameters:
    """Parameters of proportional prioritization.

    Raises:
        FieldError: a parameter is out of range, or the mass of `FIRST_PRIORITY` exceeds `MASS_LIMIT`.
    """

    alpha: float = 0.6
    """Exponent of the priority: 0 for uniform draws, 1 for proportional draws. Finite, at least 0."""
    epsilon: float = 1e-6
    """Added to each priority, so that rows with priority 0 can be drawn. Finite, at least 0."""
    max_priority: float | None = None
    """Cap on priority + epsilon, before the exponent; finite, above 0. None: no cap."""

    def __post_init__(self) -> None:
        """Check every field."""
        require_not_negative("alpha", self.alpha)
        require_not_negative("epsilon", self.epsilon)
        if self.max_priority is not None:
            require_positive("max_priority", self.max_priority)
        if self.mass(0.0) > MASS_LIMIT:
            raise FieldError("epsilon", "epsilon ** alpha of at most 2 ** 900", repr(self.epsilon))
        if self.mass(FIRST_PRIORITY) > MASS_LIMIT:
            expected = (
                f"an exponent with ({FIRST_PRIORITY:g} + epsilon) ** alpha of at most 2 ** 900, the first row's mass"
            )
            raise FieldError("alpha", expected, repr(self.alpha))

    @property
    def cap(self) -> float:
        """``max_priority``, or ``inf`` if there is none."""
        return math.inf if self.max_priority is None else self.max_priority

    def mass(self, priority: float) -> float:
        """Return the mass of a row with this priority; ``inf`` on overflow."""
        try:
            return float(min(priority + self.epsilon, self.cap) ** self.alpha)
        except OverflowError:
            return math.inf

    def priority_limit(self) -> float:
        """Return the largest priority whose mass is at most `MASS_LIMIT`; ``inf`` if every finite one qualifies."""
        largest = float(np.finfo(np.float64).max)
        if self.mass(largest) <= MASS_LIMIT:
            return math.inf
        # Bisect over the bit patterns: positive floats have the same order as integers with the same bits.
        all_bits = range(int(np.float64(largest).view(np.int64)))
        return _float_of(bisect(all_bits, False, key=lambda bits: self.mass(_float_of(bits)) > MASS_LIMIT) - 1)


def _float_of(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))


@kernel
def _mass(priority: float, alpha: float, epsilon: float, cap: float) -> float:
    return 0.0 if priority < 0.0 else min(priority + epsilon, cap) ** alpha


@kernel
def _write(
    keys: Integers,
    new_priorities: Floats,
    priorities: Floats,
    tree: Floats,
    tree_starts: Integers,
    largest: Floats,
    smallest: Floats,
    least_mass: Floats,
    block_starts: Integers,
    alpha: float,
    epsilon: float,
    cap: float,
) -> None:
    """Store priorities and masses, then update sums and extremes."""
    count = len(keys)
    slots = np.empty(count, dtype=np.int64)
    old_priorities = np.empty(count, dtype=np.float64)
    old_masses = np.empty(count, dtype=np.float64)
    for i in range(count):
        slot = keys[i] % len(priorities)
        slots[i] = slot
        prefetch(priorities, slot)
        sums.prefetch_above(tree, tree_starts, slot)
        extremes.prefetch_block(largest, slot)
        extremes.prefetch_block(smallest, slot)
        extremes.prefetch_block(least_mass, slot)
    priority = DEAD_PRIORITY
    mass = 0.0
    for i in range(count):
        old_priorities[i] = priorities[slots[i]]
        old_masses[i] = tree[slots[i]]
        if new_priorities[i] != priority:  # New rows share one priority: compute the power once.
            priority = new_priorities[i]
            mass = _mass(priority, alpha, epsilon, cap)
        priorities[slots[i]] = priority
        tree[slots[i]] = mass
    extremes.follow(priorities, largest, block_starts, extremes.LARGEST, extremes.NOT_BELOW_ZERO, slots, old_priorities)
    extremes.follow(
        priorities, smallest, block_starts, extremes.SMALLEST, extremes.NOT_BELOW_ZERO, slots, old_priorities
    )
    extremes.follow(
        tree[: len(priorities)], least_mass, block_starts, extremes.SMALLEST, extremes.ABOVE_ZERO, slots, old_masses
    )
    sums.add_up_above(tree, tree_starts, slots)


@kernel
def _rebuild(
    priorities: Floats,
    tree: Floats,
    tree_starts: Integers,
    largest: Floats,
    smallest: Floats,
    least_mass: Floats,
    block_starts: Integers,
    alpha: float,
    epsilon: float,
    cap: float,
) -> None:
    """Compute everything from the priorities."""
    for slot in range(len(priorities)):
        tree[slot] = _mass(priorities[slot], alpha, epsilon, cap)
    sums.add_up_all(tree, tree_starts)
    extremes.gather(priorities, largest, block_starts, extremes.LARGEST, extremes.NOT_BELOW_ZERO)
    extremes.gather(priorities, smallest, block_starts, extremes.SMALLEST, extremes.NOT_BELOW_ZERO)
    extremes.gather(tree[: len(priorities)], least_mass, block_starts, extremes.SMALLEST, extremes.ABOVE_ZERO)


@kernel
def _draw(fractions: Floats, tree: Floats, tree_starts: Integers, oldest: int, slots: int) -> tuple[Integers, Floats]:
    """Return keys and probabilities of the rows at these fractions of the total mass, which is positive."""
    total = tree[tree_starts[-2]]
    batch = len(fractions)
    keys = np.empty(batch, dtype=np.int64)
    probabilities = fractions * total
    sums.descend(tree, tree_starts, probabilities, keys)
    oldest_slot = oldest % slots
    for i in range(batch):
        slot = keys[i]
        probabilities[i] = max(tree[slot] / total, LEAST_PROBABILITY)
        keys[i] = key_in_slot(slot, oldest, oldest_slot, slots)
    return keys, probabilities


class SumTree(PriorityIndex):
    """Draws rows in proportion to their mass, using a sum tree."""

    name = "sum_tree"
    most_bytes_per_slot = 8 * 8 / 7 + 3 * 8 / 63
    """One tree of sums with fan-out 8, including its leaves, and three trees of extremes with fan-out 64."""
    Parameters = SumTreeParameters

    def __init__(self, parameters: SumTreeParameters, priorities: Floats) -> None:
        """Create an empty index; see `PriorityIndex`."""
        super().__init__(parameters, priorities)
        self.priority_limit = parameters.priority_limit()
        self._tree_starts = sums.sum_starts(len(priorities))
        self._tree = aligned_full(int(self._tree_starts[-1]), 0.0)
        self._block_starts = extremes.block_starts(len(priorities))
        self._largest, self._smallest, self._least_mass = (extremes.empty_tree(self._block_starts) for _ in range(3))
        self._arguments = (
            *(self._priorities, self._tree, self._tree_starts),
            *(self._largest, self._smallest, self._least_mass, self._block_starts),
            *(float(parameters.alpha), float(parameters.epsilon), float(parameters.cap)),
        )
        """Common arguments of `_write` and `_rebuild`, in order."""

    @property
    def total_mass(self) -> float:
        """Sum of the mass of all live rows."""
        return float(self._tree[self._tree_starts[-2]])

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
        _write(as_kernel_input(keys), as_kernel_input(priorities), *self._arguments)

    def _recompute(self, live: LiveRows) -> None:
        _rebuild(*self._arguments)

    def draw(self, fractions: Floats, live: LiveRows) -> Drawn:
        """Draw the rows at these fractions of the total mass; draw uniformly if the total is zero."""
        if self.total_mass <= 0.0:
            return draw_evenly(fractions, live)
        keys, probabilities = _draw(as_kernel_input(fractions), self._tree, self._tree_starts, live.oldest, live.slots)
        return Drawn(keys, probabilities)

    def masses(self, priorities: Floats, ranks: Integers) -> Floats:
        """Return float64[n]: min(priority + epsilon, max_priority) ** alpha."""
        return np.asarray(
            np.minimum(priorities + self.parameters.epsilon, self.parameters.cap) ** self.parameters.alpha
        )

    def smallest_probability(self, live: LiveRows) -> float:
        """Return the smallest probability of a live row with non-zero mass; 1 / size if the total mass is zero."""
        total = self.total_mass
        if total <= 0.0:
            return 1.0 / live.size
        return max(extremes.top(self._least_mass, self._block_starts, extremes.SMALLEST) / total, LEAST_PROBABILITY)
