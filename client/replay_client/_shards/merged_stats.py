"""Joins the statistics of several servers, and of the shards of their tables, into totals.

Counts, rates, masses and bars are added. Quantiles are estimated, on the assumption that the values of each shard are
evenly spread between its own quantiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Final, TypeVar

import numpy as np

from replay_client._shards.merged_description import merged_description
from replay_client.results.shards import LostRows, ShardMap
from replay_client.results.stats import (
    LimiterStats,
    MethodStats,
    Rates,
    ServerStats,
    ShardReport,
    Stats,
    StepStats,
    TableStats,
    TimesSampled,
    WaitStats,
)

Counts = TypeVar("Counts", StepStats, LimiterStats)

_POINTS: Final = 512
"""Number of points that represent the distribution of each shard."""
_SUMMED: Final = (
    *("bytes", "evicted", "sampled", "updated", "stale", "unsynced", "failed_syncs", "repeated_inserts"),
    *("waiting", "waiting_inserts", "waited", "total_mass", "sampled_same_host", "overtaken", "batches"),
    "batches_ahead",
)


def merged_stats(shards: ShardMap, found: Mapping[int, Stats]) -> Stats:
    """Join the statistics of the servers that answered.

    Args:
        shards: all servers.
        found: statistics by the id of the shard, at least one.
    """
    names = sorted({name for stats in found.values() for name in stats.tables})
    parts = {name: {id: each.tables[name] for id, each in found.items() if name in each.tables} for name in names}
    servers = {id: stats.server for id, stats in found.items()}
    return Stats(
        server=_merged_server(list(servers.values())),
        tables={name: merged_table_stats(part, shards) for name, part in parts.items()},
        shards=shards,
        servers=servers,
    )


def merged_table_stats(found: Mapping[int, TableStats], shards: ShardMap) -> TableStats:
    """Join the statistics of a table's shards.

    Args:
        found: statistics of each shard by id, at least one.
        shards: all servers.
    """
    parts = list(found.values())
    away = [shard.id for shard in shards.in_use if shard.id not in found]
    reports = newest_reports(parts)
    first = parts[0]
    drawable = [part for part in parts if part.priorities]
    return replace(
        first,
        table=merged_description([part.table for part in parts]),
        **{name: sum(getattr(part, name) for part in parts) for name in _SUMMED},
        lost=sum(part.lost for part in parts) + _lost_with_shards(parts, reports, shards),
        rates=_merged_rates([part.rates for part in parts]),
        waits=merged_waits([wait for part in parts for wait in part.waits]),
        largest_priority=max(part.largest_priority for part in parts),
        smallest_priority=min((part.smallest_priority for part in drawable), default=0.0),
        priorities=mixed_quantiles([(part.priorities, part.size) for part in parts]),
        ages_s=mixed_quantiles([(part.ages_s, part.size) for part in parts]),
        times_sampled=merged_bars([part.times_sampled for part in parts]),
        rate_limiter=_added([part.rate_limiter for part in parts if part.rate_limiter is not None]),
        steps=_added([part.steps for part in parts if part.steps is not None]),
        shards=dict(found),
        shards_away=tuple(away),
        mass_away=sum(reports[shard_id].total_mass for shard_id in away if shard_id in reports),
        reports=reports,
    )


def newest_reports(parts: Iterable[TableStats]) -> dict[int, ShardReport]:
    """Return the newest report about each shard that was unreachable, by id: the one with the most inserts."""
    newest: dict[int, ShardReport] = {}
    for shard_id, report in (each for part in parts for each in part.reports.items()):
        if shard_id not in newest or report.inserted > newest[shard_id].inserted:
            newest[shard_id] = report
    return newest


def _lost_with_shards(parts: Sequence[TableStats], reports: Mapping[int, ShardReport], shards: ShardMap) -> int:
    """Count the rows of lost shards, from the shard map or a client's report, whichever has seen more inserts."""
    uids = {part.table.uid for part in parts}
    lost = 0
    for shard in (each for each in shards.shards if each.state == "lost"):
        known = [each for each in shard.lost_rows if each.table == parts[0].name and uids & set(each.table_uids)]
        heard: list[LostRows | ShardReport] = [*known, *([reports[shard.id]] if shard.id in reports else [])]
        lost += max(heard, key=lambda each: each.inserted).size if heard else 0
    return lost


def mixed_quantiles(parts: Sequence[tuple[Mapping[float, float], int]]) -> dict[float, float]:
    """Estimate the quantiles of a mixture. The smallest and the largest value are exact.

    Args:
        parts: for each part, its quantiles by fraction, from 0 to 1, and its number of rows.
    """
    known = [(quantiles, rows) for quantiles, rows in parts if quantiles and rows]
    if len(known) <= 1:
        return dict(known[0][0]) if known else {}
    at = (np.arange(_POINTS) + 0.5) / _POINTS
    values = np.concatenate([np.interp(at, list(each), list(each.values())) for each, _ in known])
    weights = np.concatenate([np.full(_POINTS, rows / _POINTS) for _, rows in known])
    order = np.argsort(values)
    values, weights = values[order], weights[order]
    below = (np.cumsum(weights) - weights / 2) / weights.sum()
    fractions = sorted(known[0][0])
    mixed = dict(zip(fractions, np.interp(fractions, below, values).tolist(), strict=True))
    mixed[fractions[0]] = min(each[fractions[0]] for each, _ in known)
    mixed[fractions[-1]] = max(each[fractions[-1]] for each, _ in known)
    return mixed


def merged_bars(parts: Iterable[Sequence[TimesSampled]]) -> tuple[TimesSampled, ...]:
    """Add up histograms: the rows of all bars with the same bounds."""
    rows: dict[tuple[int, int], int] = {}
    for bar in (bar for bars in parts for bar in bars):
        bounds = (bar.at_least, bar.at_most)
        rows[bounds] = rows.get(bounds, 0) + bar.rows
    return tuple(TimesSampled(*bounds, count) for bounds, count in sorted(rows.items()))


def _merged_rates(parts: Sequence[Rates]) -> Rates:
    return Rates(
        window_s=max(part.window_s for part in parts),
        inserted_per_s=sum(part.inserted_per_s for part in parts),
        sampled_per_s=sum(part.sampled_per_s for part in parts),
        updated_per_s=sum(part.updated_per_s for part in parts),
    )


def merged_waits(waits: Iterable[WaitStats]) -> tuple[WaitStats, ...]:
    """Join the shards' statistics of calls that wait for the same thing."""
    by_what: dict[str, list[WaitStats]] = {}
    for wait in waits:
        by_what.setdefault(wait.waited_for, []).append(wait)
    return tuple(_joined_waits(same) for same in by_what.values())


def _joined_waits(same: Sequence[WaitStats]) -> WaitStats:
    expected_s = [wait.expected_s for wait in same if wait.expected_s is not None]
    return WaitStats(
        waited_for=same[0].waited_for,
        calls=sum(wait.calls for wait in same),
        have=sum(wait.have for wait in same),
        needed=sum(wait.needed for wait in same),
        waited_s=max(wait.waited_s for wait in same),
        expected_s=max(expected_s) if len(expected_s) == len(same) else None,
    )


def _added(parts: Sequence[Counts]) -> Counts | None:
    if not parts:
        return None
    return type(parts[0])(
        **{field.name: sum(getattr(part, field.name) for part in parts) for field in fields(parts[0])}
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
