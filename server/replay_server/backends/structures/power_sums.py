"""Prefix sums of j ** -alpha: what turns a fraction of the total mass into a rank.

One array of them serves every size n, since the mass of the first n ranks is its n-th entry (Schaul et al. 2016,
arXiv:1511.05952, section 3.3, the rank-based variant: the priority of rank j is 1 / j, before the exponent alpha).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay_server.kernels.compile import kernel, part_of_kernel
from replay_server.kernels.prefetch import prefetch


@kernel
def rank_mass(rank: int, alpha: float) -> float:
    """Return rank ** -alpha, for ranks from 1 on."""
    return float(float(rank) ** -alpha)


def last_rank_with_mass(size: int, alpha: float) -> int:
    """Return the last of the ranks from 1 to ``size`` whose mass a float64 can tell from zero."""
    if rank_mass(size, alpha) > 0.0:  # for any exponent that somebody would use
        return size
    with_mass, beyond = 1, size
    while beyond - with_mass > 1:
        middle = (with_mass + beyond) // 2
        if rank_mass(middle, alpha) > 0.0:
            with_mass = middle
        else:
            beyond = middle
    return with_mass


RANKS_PER_CELL = 64
"""How many ranks share an entry of a guide on average: an eighth of a byte for each."""

LEAST_CELLS = 1024
"""Cells of the guide to few ranks: of these, more per rank are wanted, as their masses differ more."""


class PowerSums(NamedTuple):
    """Prefix sums, and a guide to them (after the method of Chen and Asau 1974).

    The guide cuts the mass of all ranks into cells of equal mass, and says at which rank, and how far into its mass,
    each begins. Where in its cell a point lies tells about which rank it belongs to: a search starts there.
    """

    prefix: NDArray[np.float64]
    """float64[count + 1]: at n the sum of j ** -alpha for j from 1 to n."""
    guide: NDArray[np.float64]
    """float64[cells + 1]: the rank, from 0 on, at which each cell begins; then that at which the last one ends."""
    cells_per_mass: float
    """A point p of the mass lies in the cell floor(p * cells_per_mass)."""


def power_sums(count: int, alpha: float) -> PowerSums:
    """Return the sums of the masses of ``count`` ranks and fewer; ``count`` is at least 1."""
    prefix = np.empty(count + 1, dtype=np.float64)
    _add_up(prefix, alpha)
    cells = LEAST_CELLS + count // RANKS_PER_CELL
    guide = np.empty(cells + 1, dtype=np.float64)
    cells_per_mass = cells / float(prefix[-1])
    _make_guide(prefix, guide, cells_per_mass)
    return PowerSums(prefix, guide, cells_per_mass)


@kernel
def _add_up(prefix: NDArray[np.float64], alpha: float) -> None:
    """Compute prefix sums.

    What each addition rounds off is carried along (Kahan's summation), so the error does not grow with n.
    """
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
def _make_guide(prefix: NDArray[np.float64], guide: NDArray[np.float64], cells_per_mass: float) -> None:
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
def _last_within(prefix: NDArray[np.float64], size: int, point: float, guess: int) -> int:
    """Return the last of the sums up to ``size`` that is not beyond a point; the last one of them is.

    Goes from a guess in steps that double, and then by halving: a guess may be far off where masses are tiny.
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
def find_ranks(sums: PowerSums, size: int, fractions: NDArray[np.float64], ranks: NDArray[np.int64]) -> None:
    """Find the ranks, from 0 on, that lie at fractions of the mass of the first ``size`` ranks, at least 1.

    That is the first rank whose prefix sum is beyond the point. The guide tells about where it is.
    """
    prefix, guide = sums.prefix, sums.guide
    total = prefix[size]
    # A fraction may round up to the total: the last point within it still belongs to a rank that has a mass.
    points = np.minimum(fractions * total, np.nextafter(total, 0.0))
    for i in range(len(points)):
        place = points[i] * sums.cells_per_mass
        cell = min(int(place), len(guide) - 2)
        guess = guide[cell] + (place - cell) * (guide[cell + 1] - guide[cell])
        ranks[i] = min(int(guess), size - 1)
        prefetch(prefix, ranks[i])
    for i in range(len(points)):
        ranks[i] = _last_within(prefix, size, points[i], ranks[i])
