"""The backend ``rank``: rank-based prioritization (Schaul et al. 2016, arXiv:1511.05952, section 3.3).

P(i) = rank_i ** -alpha / sum of j ** -alpha over all ranks j (equation 1, with a priority of 1 / rank). Rank 1 has the
largest priority. Among rows with equal priority, newer rows rank first. Ranks are exact after every write; the paper
uses a heap that is sorted only occasionally.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Self

import numpy as np

from replay_server.backends.index import (
    DEAD_PRIORITY,
    LEAST_PROBABILITY,
    Drawn,
    LiveRows,
    PriorityIndex,
    live_slots,
    require_not_negative,
)
from replay_server.backends.structures import rank_tree
from replay_server.backends.structures.power_sums import (
    PowerSums,
    find_ranks,
    last_rank_with_mass,
    power_sums,
    rank_mass,
)
from replay_server.kernels.compile import Floats, Integers, as_kernel_input, kernel
from replay_server.kernels.prefetch import touch

MOST_RANKED = 2_000_000_000
"""Largest capacity with this backend: even with slack, a table has fewer slots than `rank_tree.MOST_RANKED`."""


@dataclass(frozen=True)
class RankParameters:
    """Parameters of rank-based prioritization.

    Raises:
        FieldError: a parameter is out of range.
    """

    alpha: float = 0.6
    """Exponent of 1 / rank: 0 for uniform draws, 1 for draws in proportion to 1 / rank. Finite, at least 0."""

    def __post_init__(self) -> None:
        """Check every field."""
        require_not_negative("alpha", self.alpha)


@kernel
def _write_piece(keys: Integers, new_priorities: Floats, priorities: Floats, order: rank_tree.RankTree) -> int:
    """Store up to `rank_tree.MOST_MOVED` priorities and move rows to their ranks; return rows added minus rows removed.

    The loop over pieces is in Python, because putting it into a kernel would double the compile time.
    """
    old_keys = np.empty(len(keys), dtype=np.int64)
    old_priorities = np.empty(len(keys), dtype=np.float64)
    added_keys = np.empty(len(keys), dtype=np.int64)
    added_priorities = np.empty(len(keys), dtype=np.float64)
    removed = 0
    added = 0
    slots = np.empty(len(keys), dtype=np.int64)
    for i in range(len(keys)):
        slots[i] = keys[i] % len(priorities)
    for i in range(len(keys)):
        touch(priorities, slots[i])
    for i in range(len(keys)):
        slot = slots[i]
        old = priorities[slot]
        new = new_priorities[i]
        if old == new:
            continue
        priorities[slot] = new
        if old >= 0.0:
            old_keys[removed] = keys[i]
            old_priorities[removed] = old
            removed += 1
        if new >= 0.0:
            added_keys[added] = keys[i]
            added_priorities[added] = new
            added += 1
    rank_tree.move(order, old_priorities[:removed], old_keys[:removed], added_priorities[:added], added_keys[:added])
    return added - removed


@kernel
def _draw(
    fractions: Floats, sums: PowerSums, order: rank_tree.RankTree, size: int, alpha: float
) -> tuple[Integers, Floats]:
    """Return the keys and probabilities of the rows at these fractions of the total mass."""
    batch = len(fractions)
    ranks = np.empty(batch, dtype=np.int64)
    find_ranks(sums, size, fractions, ranks)
    total = sums.prefix[size]
    probabilities = np.empty(batch, dtype=np.float64)
    for i in range(batch):
        probabilities[i] = max(rank_mass(ranks[i] + 1, alpha) / total, LEAST_PROBABILITY)
    return rank_tree.keys_of_ranks(order, ranks), probabilities


def warm_up_writing() -> None:
    """Compile or load the write kernels, which take as long to compile as all others together."""
    _write_piece(np.zeros(1, dtype=np.int64), np.ones(1), np.full(1, DEAD_PRIORITY), rank_tree.make_tree(1))


def warm_up_drawing() -> None:
    """Compile or load the draw kernels. `warm_up_writing` uses none of them, so both can compile in parallel."""
    _draw(np.empty(0), power_sums(1, 1.0), rank_tree.allocate(1), 1, 1.0)


class RankIndex(PriorityIndex):
    """Draws rows by rank, using a counted B+ tree."""

    name = "rank"
    is_ranked = True
    most_rows = MOST_RANKED
    most_bytes_per_slot = 57.4
    """Prefix sums and their guide take 8.2 bytes per slot, leaves 43.3 (520 bytes per 12 rows), and inner nodes 5.9
    (776 bytes per 12 children, on each level). Only pages that were written to use memory."""
    Parameters = RankParameters

    def __init__(self, parameters: RankParameters, priorities: Floats) -> None:
        """Create an empty index; see `PriorityIndex`."""
        super().__init__(parameters, priorities)
        self._alpha = float(parameters.alpha)
        self._size = 0
        self._sums = power_sums(len(priorities), self._alpha)
        self._order = rank_tree.make_tree(len(priorities))

    def blank(self) -> Self:
        """Return an index without rows; see `PriorityIndex.blank`. It shares the prefix sums, which never change."""
        made = copy(self)
        made._size = 0
        made._order = rank_tree.make_tree(len(self._priorities))
        return made

    @property
    def total_mass(self) -> float:
        """Sum of j ** -alpha over the ranks of all live rows."""
        return float(self._sums.prefix[self._size])

    @property
    def largest_priority(self) -> float:
        """Largest priority of a live row; 0.0 when there is none."""
        return rank_tree.largest_priority(self._order) if self._size else 0.0

    @property
    def smallest_priority(self) -> float:
        """Smallest priority of a live row; 0.0 when there is none."""
        return rank_tree.smallest_priority(self._order) if self._size else 0.0

    def write(self, keys: Integers, priorities: Floats) -> None:
        """Set the priorities of new or existing rows."""
        keys, priorities = as_kernel_input(keys), as_kernel_input(priorities)
        for first in range(0, len(keys), rank_tree.MOST_MOVED):
            piece = slice(first, first + rank_tree.MOST_MOVED)
            self._size += _write_piece(keys[piece], priorities[piece], self._priorities, self._order)

    def _recompute(self, live: LiveRows) -> None:
        # Newest first: a stable sort then ranks equal priorities correctly.
        newest_first = self._priorities[live_slots(live)[::-1]]
        order = np.argsort(-newest_first, kind="stable")
        self._size = int(np.count_nonzero(newest_first >= 0.0))
        order = order[: self._size]  # rows that cannot be drawn come last
        keys = live.oldest + live.size - 1 - order
        rank_tree.fill(self._order, newest_first[order], keys)

    def draw(self, fractions: Floats, live: LiveRows) -> Drawn:
        """Draw the rows at these fractions of the total mass."""
        return Drawn(*_draw(as_kernel_input(fractions), self._sums, self._order, self._size, self._alpha))

    def masses(self, priorities: Floats, ranks: Integers) -> Floats:
        """Return float64[n]: rank ** -alpha."""
        return np.asarray(ranks.astype(np.float64) ** -self._alpha)

    def smallest_probability(self, live: LiveRows) -> float:
        """Return the probability of the last rank whose mass is above zero in float64."""
        mass = rank_mass(last_rank_with_mass(self._size, self._alpha), self._alpha)
        return max(float(mass) / self.total_mass, LEAST_PROBABILITY)
