"""Joins what the servers of a table say into what the whole table says: descriptions, statistics, inspections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from replay_proto import merged_stats as messages
from replay_proto.merged_stats import added_bars
from replay_proto.rate_limit import joined
from replay_proto.v1 import replay_pb2

from replay_client._shards.keys import global_keys
from replay_client._shards.mass import shard_chances
from replay_client.results.description import TableDescription
from replay_client.results.inspection import Inspection, LargestRows
from replay_client.results.shards import ShardMap
from replay_client.results.stats import MethodStats, ServerStats, Stats, TableStats, TimesSampled


def merged_description(shards: Sequence[TableDescription]) -> TableDescription:
    """Describe the whole table.

    Numbers of rows, slots and capacities are summed, and rate limits are joined. Directory and socket are empty. All
    other properties are those of the first of the ``shards``.
    """
    limits = [shard.rate_limit for shard in shards if shard.rate_limit is not None]
    return replace(
        shards[0],
        rate_limit=joined(limits) if limits else None,
        capacity=sum(shard.capacity for shard in shards),
        size=sum(shard.size for shard in shards),
        inserted=sum(shard.inserted for shard in shards),
        slots=sum(shard.slots for shard in shards),
        directory="",
        socket="",
    )


def merged_stats(shards: ShardMap, found: Mapping[int, replay_pb2.StatsResponse]) -> Stats:
    """Join the statistics of the servers that answered.

    Args:
        shards: all servers.
        found: statistics by the id of the shard, at least one.
    """
    tables: dict[str, dict[int, replay_pb2.TableStats]] = {}
    for shard_id, answer in found.items():
        for table in answer.tables:
            tables.setdefault(table.table.config.name, {})[shard_id] = table
    servers = {shard_id: ServerStats.from_proto(answer.server) for shard_id, answer in found.items()}
    return Stats(
        server=_merged_server(list(servers.values())),
        tables={name: merged_table_stats(parts, shards) for name, parts in sorted(tables.items())},
        shards=shards,
        servers=servers,
    )


def merged_table_stats(found: Mapping[int, replay_pb2.TableStats], shards: ShardMap) -> TableStats:
    """Join the statistics of a table's shards.

    Args:
        found: statistics of each shard by id, at least one.
        shards: all servers.
    """
    whole = TableStats.from_proto(messages.merged_table_stats(found, shards.to_proto()))
    away = [shard.id for shard in shards.in_use if shard.id not in found]
    return replace(
        whole,
        shards={shard_id: TableStats.from_proto(part) for shard_id, part in found.items()},
        shards_away=tuple(away),
        mass_away=sum(whole.reports[shard_id].total_mass for shard_id in away if shard_id in whole.reports),
    )


def _merged_server(servers: Sequence[ServerStats]) -> ServerStats:
    methods: dict[str, list[MethodStats]] = {}
    for method in (method for server in servers for method in server.methods.values()):
        methods.setdefault(method.method, []).append(method)
    return ServerStats(
        version=" and ".join(sorted({server.version for server in servers})),
        uptime_s=min(server.uptime_s for server in servers),
        resident_bytes=sum(server.resident_bytes for server in servers),
        cpu_s=sum(server.cpu_s for server in servers),
        methods={name: _merged_method(same) for name, same in sorted(methods.items())},
    )


def _merged_method(same: Sequence[MethodStats]) -> MethodStats:
    """Join the figures of one method on several servers.

    Mean and median latencies are averaged, weighted by calls per second. The 99th percentile is the largest of all.
    """
    per_s = sum(method.calls_per_s for method in same)

    def mean(values: Iterable[float]) -> float:
        total = sum(value * method.calls_per_s for value, method in zip(values, same, strict=True))
        return total / per_s if per_s else 0.0

    return MethodStats(
        method=same[0].method,
        calls=sum(method.calls for method in same),
        errors=sum(method.errors for method in same),
        active=sum(method.active for method in same),
        calls_per_s=per_s,
        mean_ms=mean(method.mean_ms for method in same),
        p50_ms=mean(method.p50_ms for method in same),
        p99_ms=max(method.p99_ms for method in same),
    )


Floats = NDArray[np.float64]


def merged_inspection(shards: Mapping[int, Inspection], largest: int, away: Iterable[int] = ()) -> Inspection:
    """Join the distributions of a table's shards.

    The rows with the largest priorities are exact. Beyond them, each shard reports only selected ranks, each of which
    represents the rows around it. To estimate a selected rank's position in the whole table, the ranks of all shards
    are sorted by priority, and the rows that they represent are counted.

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
