"""Two-level draws: first shards by their mass, then rows in each shard.

    chances = shard_chances(masses, drawable)                       # q
    counts = rows_by_shard(chances, 256, "stratified", random)      # n: rows to draw in each shard
    probability = chances[shard] * probability_in_shard             # P = q * p

Masses may have changed since the last replies, but `P` is always the probability with which a row was actually drawn.
In a batch of B rows, the expected number of draws of a row is therefore B * P, and weights are unbiased.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_client.draws import DrawMode


def shard_chances(masses: NDArray[np.float64], drawable: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the probability of each shard, float64[shards].

    It is the shard's share of the total mass. If all masses are zero, it is the share of the drawable rows, because a
    single table then draws uniformly.

    Args:
        masses: float64[shards]: mass of each shard.
        drawable: int64[shards]: drawable rows of each shard; not all zero.
    """
    weights = np.where(drawable > 0, masses, 0.0)
    total = weights.sum()
    if total <= 0.0:
        weights, total = drawable.astype(np.float64), float(drawable.sum())
    chances: NDArray[np.float64] = weights / total
    return chances


def rows_by_shard(
    chances: NDArray[np.float64], batch_size: int, mode: DrawMode, random: np.random.Generator
) -> NDArray[np.int64]:
    """Choose how many rows of a batch to draw in each shard, int64[shards].

    In the mode "stratified", the shards' masses lie side by side on a line, which is cut into ``batch_size`` equal
    parts. One point is chosen in each part, as in a single table (Schaul et al. 2016, section 3.3). In the mode
    "independent", the numbers are a multinomial draw.
    """
    if mode == "independent":
        return random.multinomial(batch_size, chances)
    points = (np.arange(batch_size) + random.random(batch_size)) / batch_size
    ends = np.cumsum(chances)
    # Sums may round to less than 1. Points beyond the sum go to the last shard with any mass.
    last = int(np.flatnonzero(chances)[-1])
    shards = np.minimum(np.searchsorted(ends, points, side="right"), last)
    return np.bincount(shards, minlength=len(chances)).astype(np.int64)


def shards_of_rows(
    chances: NDArray[np.float64], batches: int, batch_size: int, mode: DrawMode, random: np.random.Generator
) -> NDArray[np.intp]:
    """Choose the shard in which to draw each row of several batches, intp[batches, batch_size], like `rows_by_shard`.

    The rows of each batch are in random order.
    """
    points = random.random((batches, batch_size))
    if mode == "stratified":
        for row in points:
            row += random.permutation(batch_size)
        points /= batch_size
    last = int(np.flatnonzero(chances)[-1])
    shards: NDArray[np.intp] = np.minimum(np.searchsorted(np.cumsum(chances), points, side="right"), last)
    return shards


def joined_weights(probabilities: NDArray[np.float64], reference: float | None, beta: float) -> NDArray[np.float32]:
    """Return the weights of rows of several shards, float32[n]: ``(P_ref / P) ** beta``.

    Args:
        probabilities: float64[n]: ``P`` of the rows.
        reference: ``P_ref``, the smallest ``P`` in all shards. If None, the smallest ``P`` in the batch is used.
        beta: the exponent (Schaul et al. 2016, section 3.4).
    """
    smallest = probabilities.min() if reference is None else reference
    weights: NDArray[np.float64] = (smallest / probabilities) ** beta
    return weights.astype(np.float32)
