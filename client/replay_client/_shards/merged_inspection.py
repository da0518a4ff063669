"""Joins the distributions of priorities in a table's shards into that of the whole table.

The rows with the largest priorities are exact. Beyond them, each shard reports only selected ranks, each of which
represents the rows around it. To estimate a selected rank's position in the whole table, the ranks of all shards are
sorted by priority, and the rows that they represent are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from replay_proto.merged_stats import added_bars

from replay_client._shards.keys import global_keys
from replay_client._shards.mass import shard_chances
from replay_client._shards.merged_description import merged_description
from replay_client.results.inspection import Inspection, LargestRows
from replay_client.results.stats import TimesSampled

Floats = NDArray[np.float64]


def merged_inspection(shards: Mapping[int, Inspection], largest: int, away: Iterable[int] = ()) -> Inspection:
    """Join the distributions of a table's shards.

    Args:
        shards: the distribution of each shard by id, at least one.
        largest: how many of the rows with the largest priorities to keep.
        away: ids of the shards that are missing.
    """
    parts = list(shards.values())
    table = merged_description([part.table for part in parts])
    chances = _chances(parts)
    ranks, priorities, probabilities = _by_rank(parts, chances)
    top = _largest(shards, chances, largest)
    return Inspection(
        table=table,
        looked_at=sum(part.looked_at for part in parts),
        total_mass=sum(part.total_mass for part in parts),
        ranks=ranks,
        priorities=priorities,
        probabilities=probabilities,
        largest=top,
        ages_s=_merged_ages(parts),
        times_sampled=tuple(TimesSampled(*bar) for bar in added_bars(part.times_sampled for part in parts)),
        is_mixed=len(parts) > 1,
        shards_away=tuple(away),
    )


def _chances(parts: Sequence[Inspection]) -> Floats:
    """Return the probability of each shard, float64[s]. All are zero if the table is empty."""
    drawable = np.array([part.rows.sum() for part in parts]).round().astype(np.int64)
    if not drawable.any():
        return np.zeros(len(parts))
    return np.array(shard_chances([part.total_mass for part in parts], drawable.tolist()))


def _by_rank(parts: Sequence[Inspection], chances: Floats) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return selected ranks, int64[m], with their priorities and probabilities, float64[m]."""
    priorities = np.concatenate([part.priorities for part in parts])
    probabilities = np.concatenate([part.probabilities * q for part, q in zip(parts, chances, strict=True)])
    rows = np.concatenate([part.rows for part in parts])
    order = np.argsort(-priorities, kind="stable")
    rows = rows[order]
    ranks, first = np.unique(np.ceil(np.cumsum(rows) - rows / 2).astype(np.int64), return_index=True)
    return ranks, priorities[order][first], probabilities[order][first]


def _largest(shards: Mapping[int, Inspection], chances: Floats, count: int) -> LargestRows:
    """Return the ``count`` rows with the largest priorities. Rows with equal priorities are in the order of shards."""
    tops = [part.largest for part in shards.values()]
    keys = np.concatenate([global_keys(number, part.largest.row_keys) for number, part in shards.items()])
    probabilities = np.concatenate([top.probabilities * q for top, q in zip(tops, chances, strict=True)])
    priorities = np.concatenate([top.priorities for top in tops])
    chosen = np.argsort(-priorities, kind="stable")[:count]
    return LargestRows(
        row_keys=keys[chosen],
        priorities=priorities[chosen],
        probabilities=probabilities[chosen],
        ages_s=np.concatenate([top.ages_s for top in tops])[chosen],
        times_sampled=np.concatenate([top.times_sampled for top in tops])[chosen],
    )


def _merged_ages(parts: Sequence[Inspection]) -> Floats:
    """Choose ages from each shard in proportion to its rows: float64[n], ascending."""
    known = [(part.ages_s, part.table.size) for part in parts if len(part.ages_s)]
    if not known:
        return np.empty(0)
    per_row = min(len(ages) / size for ages, size in known)
    chosen = [
        ages[np.linspace(0, len(ages) - 1, max(1, round(size * per_row))).round().astype(np.intp)]
        for ages, size in known
    ]
    return np.sort(np.concatenate(chosen))
