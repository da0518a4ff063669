"""Two-level draws: first shards by their mass, then rows in each shard.

    chances = shard_chances(masses, drawable)                       # q
    counts = rows_by_shard(chances, 256, "stratified", random)      # n: rows to draw in each shard
    probability = chances[shard] * probability_in_shard             # P = q * p

Masses may have changed since the last replies, but `P` is always the probability with which a row was actually drawn.
In a batch of B rows, the expected number of draws of a row is therefore B * P, and weights are unbiased.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from replay_client.draws import DrawMode


def shard_chances(masses: Sequence[float], drawable: Sequence[int]) -> list[float]:
    """Return the probability of each shard.

    It is the shard's share of the total mass. If all masses are zero, it is the share of the drawable rows, because a
    single table then draws uniformly.

    Args:
        masses: mass of each shard.
        drawable: drawable rows of each shard; not all zero.
    """
    # Lists, because NumPy would take longer for so few numbers.
    weights = [mass if rows else 0.0 for mass, rows in zip(masses, drawable, strict=True)]
    total = sum(weights)
    if total <= 0.0:
        weights, total = [float(rows) for rows in drawable], float(sum(drawable))
    return [weight / total for weight in weights]


def rows_by_shard(chances: Sequence[float], row_count: int, mode: DrawMode, random: np.random.Generator) -> list[int]:
    """Choose how many of ``row_count`` rows to draw in each shard.

    In the mode "stratified", the shards' masses lie side by side on a line, which is cut into ``row_count`` equal
    parts. One point is chosen in each part, as in a single table (Schaul et al. 2016, section 3.3). In the mode
    "independent", the numbers are a multinomial draw.
    """
    if mode == "independent":
        numbers: list[int] = random.multinomial(row_count, chances).tolist()
        return numbers
    # A part of the line that is in one shard needs no point. In a part with a boundary between two shards, the point
    # may lie on either side of it.
    last = max(shard for shard, chance in enumerate(chances) if chance)
    ends = [*accumulate(chances[:last]), *[1.0] * (len(chances) - last)]  # the sum of all chances may round to less
    counts: list[int] = []
    before, last_part, shared = 0, -1.0, 0.0
    for end, point in zip(ends[:-1], random.random(len(ends) - 1).tolist(), strict=True):
        part, boundary = divmod(end * row_count, 1.0)
        shared = point if part != last_part else shared  # several boundaries in the same part
        below = int(part) + (shared < boundary)
        counts.append(below - before)
        before, last_part = below, part
    return [*counts, row_count - before]


def places_of_batches(counts: Sequence[int], batches: int, random: np.random.Generator) -> NDArray[np.intp]:
    """Return the places of each batch's rows among the rows of all batches, intp[batches, batch_size].

    The rows of all batches lie shard after shard. Each batch has ``counts[shard]`` rows of a shard, and has all its
    rows in random order. All batches have the same order of shards, because an order for each would take longer than
    the rest of the draw.
    """
    order = random.permutation(sum(counts))
    rows_before = [0, *accumulate(counts)][:-1]
    # In a shard, the rows of a batch follow those of the batch before.
    steps = np.repeat(counts, counts)
    first = np.arange(len(order)) + np.repeat(rows_before, counts) * (batches - 1)
    places: NDArray[np.intp] = first.take(order) + steps.take(order) * np.arange(batches)[:, np.newaxis]
    return places


def joined_weights(probabilities: NDArray[np.float64], reference: float | None, beta: float) -> NDArray[np.float32]:
    """Return the weights of rows of several shards, float32[batches, batch_size]: ``(P_ref / P) ** beta``.

    Args:
        probabilities: float64[batches, batch_size]: ``P`` of the rows.
        reference: ``P_ref``, the smallest ``P`` in all shards. If None, the smallest ``P`` in each batch is used.
        beta: the exponent (Schaul et al. 2016, section 3.4).
    """
    smallest = probabilities.min(axis=-1, keepdims=True) if reference is None else reference
    weights: NDArray[np.float64] = np.divide(smallest, probabilities)
    weights **= beta
    return weights.astype(np.float32)
