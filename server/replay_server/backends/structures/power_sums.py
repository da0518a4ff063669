"""Prefix sums of j ** -alpha, which map fractions of the total mass to ranks.

One array serves any number of live rows, because its n-th entry is the mass of the first n ranks. The mass of rank j
is its priority, 1 / j, to the power of alpha (Schaul et al. 2016, arXiv:1511.05952, section 3.3, rank-based variant).
"""

from __future__ import annotations

from bisect import bisect
from typing import NamedTuple

import numpy as np

from replay_server.kernels.compile import Floats, Integers, kernel, part_of_kernel
from replay_server.kernels.prefetch import prefetch


@kernel
def rank_mass(rank: int, alpha: float) -> float:
    """Return rank ** -alpha, for ranks from 1 on."""
    return float(float(rank) ** -alpha)


def last_rank_with_mass(size: int, alpha: float) -> int:
    """Return the last rank from 1 to ``size`` whose mass is above zero in float64."""
    if rank_mass(size, alpha) > 0.0:  # true for all realistic exponents
        return size
    return bisect(range(1, size), False, key=lambda rank: rank_mass(rank, alpha) == 0.0)


RANKS_PER_CELL = 64
"""Average number of ranks per cell of the guide. With 64, the guide takes an eighth of a byte per rank."""

LEAST_CELLS = 1024
"""Minimum number of cells. The masses of the first ranks differ most, so small tables need more cells per rank."""


class PowerSums(NamedTuple):
    """Prefix sums with a guide table (Chen and Asau 1974).

    The guide divides the total mass into cells of equal mass, and stores the fractional rank at which each begins.
    Interpolating within a cell gives the starting point of the search for a rank.
    """

    prefix: Floats
    """float64[count + 1]: entry n is the sum of j ** -alpha for j from 1 to n."""
    guide: Floats
    """float64[cells + 1]: the rank (from 0) at which each cell begins, and at which the last one ends."""
    cells_per_mass: float
    """Point p of the mass is in cell floor(p * cells_per_mass)."""


def power_sums(count: int, alpha: float) -> PowerSums:
    """Compute the prefix sums of ``count`` ranks (at least 1), and their guide."""
    prefix = np.empty(count + 1, dtype=np.float64)
    _add_up(prefix, alpha)
    cells = LEAST_CELLS + count // RANKS_PER_CELL
    guide = np.empty(cells + 1, dtype=np.float64)
    cells_per_mass = cells / float(prefix[-1])
    _make_guide(prefix, guide, cells_per_mass)
    return PowerSums(prefix, guide, cells_per_mass)


@kernel
def _add_up(prefix: Floats, alpha: float) -> None:
    """Compute prefix sums with Kahan summation, so that the error does not grow with n."""
    prefix[0] = 0.0
    total = 0.0
    lost = 0.0
    for rank in range(1, len(prefix)):
        term = rank_mass(rank, alpha) - lost
        raised = total + term
        lost = (raised - total) - term
        total = raised
        prefix[rank] = max(total, prefix[rank - 1])


@kernel
def _make_guide(prefix: Floats, guide: Floats, cells_per_mass: float) -> None:
    """Compute where each cell begins."""
    last = len(prefix) - 1
    rank = 0
    for cell in range(len(guide)):
        mass = cell / cells_per_mass
        while rank < last and prefix[rank + 1] <= mass:
            rank += 1
        within = (mass - prefix[rank]) / (prefix[rank + 1] - prefix[rank]) if rank < last else 0.0
        guide[cell] = rank + within


@part_of_kernel
def _last_within(prefix: Floats, size: int, point: float, guess: int) -> int:
    """Return the index of the last sum that does not exceed a point; the sum at ``size`` must exceed it.

    Gallops from the guess, which may be far off where masses are tiny, and then bisects.
    """
    within, step = guess, 1
    while prefix[within] > point:
        within = max(within - step, 0)
        step *= 2
    beyond, step = within + 1, 1
    while prefix[beyond] <= point:
        within, beyond = beyond, min(beyond + step, size)
        step *= 2
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if prefix[middle] <= point:
            within = middle
        else:
            beyond = middle
    return within


@kernel
def find_ranks(sums: PowerSums, size: int, fractions: Floats, ranks: Integers) -> None:
    """Find the ranks at these fractions of the total mass of the first ``size`` ranks (at least 1).

    Store them in ``ranks``, counted from 0. The rank at a point is the first whose prefix sum exceeds the point. The
    guide provides a first guess.
    """
    prefix, guide = sums.prefix, sums.guide
    total = prefix[size]
    # If a product rounds up to the total, use the largest float below the total, which belongs to a rank with mass.
    points = np.minimum(fractions * total, np.nextafter(total, 0.0))
    for i in range(len(points)):
        place = points[i] * sums.cells_per_mass
        cell = min(int(place), len(guide) - 2)
        guess = guide[cell] + (place - cell) * (guide[cell + 1] - guide[cell])
        ranks[i] = min(int(guess), size - 1)
        prefetch(prefix, ranks[i])
    for i in range(len(points)):
        ranks[i] = _last_within(prefix, size, points[i], ranks[i])
