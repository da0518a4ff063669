"""Random points, one in each of equal segments of the mass (Schaul et al. 2016, section 3.3)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from replay_server.kernels.compile import Floats, kernel

_BELOW_ONE = math.nextafter(1.0, 0.0)


def stratified_fractions(random: np.random.Generator, count: int, batches: int = 1) -> NDArray[np.float64]:
    """Return a random point in each of ``count`` segments, in random order, for each of some batches.

    They are fractions, float64[batches * count] in [0, 1), batch after batch.
    """
    numbers = random.random(2 * count * batches)
    _stratify(numbers, count)
    return numbers[: batches * count]


@kernel
def _stratify(numbers: Floats, count: int) -> None:
    """Turn each batch of 2 * count random numbers into ``count`` points in shuffled segments, in front of the array.

    The second half of a batch drives the shuffle, which is an inside-out Fisher-Yates shuffle. The points of a batch
    take the place of numbers of that batch or of earlier ones.
    """
    segments = np.empty(count, np.int64)
    for batch in range(len(numbers) // (2 * count)):
        first, made = 2 * batch * count, batch * count
        for i in range(count):
            other = int(numbers[first + count + i] * (i + 1))
            segments[i] = segments[other]
            segments[other] = i
        for i in range(count):
            # (n - 1 + u) / n can round up to 1.
            numbers[made + i] = min((numbers[first + i] + segments[i]) / count, _BELOW_ONE)
