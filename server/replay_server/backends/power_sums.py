"""Prefix sums of j ** -alpha: what turns a fraction of the total mass into a rank.

One array of them serves every size n, since the mass of the first n ranks is its n-th entry (Schaul et al. 2016,
arXiv:1511.05952, section 3.3, the rank-based variant: the priority of rank j is 1 / j, before the exponent alpha).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.compile import kernel


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


@kernel
def power_sums(count: int, alpha: float) -> NDArray[np.float64]:
    """Return float64[count + 1]: at n the sum of j ** -alpha for j from 1 to n.

    What each addition rounds off is carried along (Kahan's summation), so the error does not grow with n.
    """
    prefix = np.empty(count + 1, dtype=np.float64)
    prefix[0] = 0.0
    total = 0.0
    lost = 0.0
    for rank in range(1, count + 1):
        term = rank_mass(rank, alpha) - lost
        raised = total + term
        lost = (raised - total) - term
        total = raised
        prefix[rank] = max(total, prefix[rank - 1])
    return prefix


@kernel
def find_ranks(
    prefix: NDArray[np.float64], size: int, fractions: NDArray[np.float64], ranks: NDArray[np.int64]
) -> None:
    """Find the ranks that lie at fractions of the mass of the first ``size`` ranks.

    It is the first rank whose prefix sum is beyond the point. Halving goes on for the whole batch at once, so that
    the cache misses of a step overlap.

    Args:
        prefix: by `power_sums`.
        size: number of ranks, at least 1.
        fractions: float64[batch] in [0, 1].
        ranks: int64[batch], receives ranks from 0 on (0 is the largest priority).
    """
    total = prefix[size]
    # A fraction may round up to the total: the last point within it still belongs to a rank that has a mass.
    last_point = np.nextafter(total, 0.0)
    points = np.minimum(fractions * total, last_point)
    ranks[:] = 0
    width = size
    while width > 1:
        half = width // 2
        for i in range(len(points)):
            ranks[i] += half if prefix[ranks[i] + half] <= points[i] else 0
        width -= half
