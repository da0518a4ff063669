"""Random points, one in each of equal segments of the mass (Schaul et al. 2016, section 3.3)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from replay_server.kernels.compile import Floats, kernel

_BELOW_ONE = math.nextafter(1.0, 0.0)


def stratified_fractions(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Return a random point in each of ``count`` segments, in random order, as fractions: float64[count] in [0, 1)."""
    numbers = random.random(2 * count)
    _stratify(numbers)
    return numbers[:count]


@kernel
def _stratify(numbers: Floats) -> None:
    """Turn the first half of these random numbers into points in shuffled segments.

    The second half drives the shuffle, which is an inside-out Fisher-Yates shuffle.
    """
    count = len(numbers) // 2
    segments = np.empty(count, np.int64)
    for i in range(count):
        other = int(numbers[count + i] * (i + 1))
        segments[i] = segments[other]
        segments[other] = i
    for i in range(count):
        # (n - 1 + u) / n can round up to 1.
        numbers[i] = min((numbers[i] + segments[i]) / count, _BELOW_ONE)
