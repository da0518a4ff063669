"""Makes the rate limiters of a table's shards act as one, without I/O.

Each shard keeps its own difference ``inserted * samples_per_insert - sampled`` within its share of the bounds, so the
sum of the differences stays within the bounds of the whole table. Samples are charged to the shards with the largest
differences, whichever shards the rows were drawn from. So no insert waits while another shard has room, even if the
shards' masses are very unequal.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from replay_proto.rate_limit import RateLimit

from replay_client.errors import ReplayError
from replay_client.results.stats import LimiterStats


class Move(NamedTuple):
    """Samples to move from one shard's account to another's."""

    source: int
    """Id of the shard to charge; its difference falls."""
    target: int
    """Id of the shard to give the samples back to; its difference rises."""
    samples: int
    """Number of samples, at least 1."""


def spare_samples(limit: RateLimit, differences: Mapping[int, float]) -> int:
    """Return how many more samples the whole table allows.

    Args:
        limit: the limit of one shard.
        differences: the difference of each shard by id.
    """
    return max(0, math.floor(sum(differences.values()) - len(differences) * limit.min_diff))


def charges(limit: RateLimit, differences: Mapping[int, float], samples: int) -> dict[int, int]:
    """Return how many samples to charge to each shard, by id.

    The charges lower the largest differences to a common level. If the shards allow fewer than ``samples`` together,
    the sum is smaller.
    """
    order = sorted(differences, key=lambda shard: -differences[shard])
    level, together = -math.inf, 0.0
    for number, shard in enumerate(order, 1):
        if differences[shard] <= level:
            break
        together += differences[shard]
        level = (together - samples) / number
    most = {shard: max(0, math.floor(differences[shard] - limit.min_diff)) for shard in order}
    found: dict[int, int] = {}
    for shard in order:
        found[shard] = max(0, min(most[shard], math.floor(differences[shard] - level)))
    left = samples - sum(found.values())
    for shard in order:  # charge what is left after rounding down, or beyond what some shards allow
        more = max(0, min(left, most[shard] - found[shard]))
        found[shard] += more
        left -= more
    return {shard: count for shard, count in found.items() if count}


def move(limit: RateLimit, differences: Mapping[int, float], waiting: Collection[int]) -> Move | None:
    """Return a move that makes room in a shard where inserts wait; None if no inserts wait or no shard has room.

    Without such moves, a deadlock is possible: a writer waits for room in the shard of its episode, while all learners
    wait for more rows.

    Args:
        limit: the limit of one shard.
        differences: the difference of each shard by id.
        waiting: ids of the shards in which inserts wait.
    """
    if not waiting:
        return None
    source = max(waiting, key=lambda shard: differences[shard])
    target = min(differences, key=lambda shard: (shard in waiting, differences[shard]))
    samples = min(differences[source] - limit.min_diff, limit.max_diff - differences[target])
    return Move(source, target, math.floor(samples)) if target != source and samples >= 1.0 else None


def joined_refusal(
    refused: ReplayError, name: str, limit: RateLimit, limiter: LimiterStats, rows: int, shards: int
) -> ReplayError:
    """Return the error for an insert that no shard allowed, with the figures of the whole table.

    Args:
        refused: the error of one shard.
        name: the table.
        limit: the limit of the whole table.
        limiter: the state of the whole table's rate limiter.
        rows: number of rows in the insert.
        shards: number of shards.
    """
    needed = math.ceil((limiter.inserted + rows) * (limit.samples_per_insert or 1.0) - limit.max_diff)
    needed = max(needed, limiter.sampled + 1)
    metadata = {**refused.metadata, "have": str(limiter.sampled), "needed": str(needed)}
    message = (
        f"table {name!r} on {shards} servers: its rate limiters allow no more inserts until rows are drawn: "
        f"{limiter.sampled} of {needed} samples drawn"
    )
    return type(refused)(message, code=refused.code, reason=refused.reason, metadata=metadata)
