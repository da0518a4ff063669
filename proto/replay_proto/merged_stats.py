"""Joins the statistics of a table's shards into those of the whole table.

Counts, rates, masses and bars are added. Quantiles are estimates, on the assumption that the values of each
part are evenly spread between its own quantiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from replay_proto.v1 import replay_pb2

Part = tuple[Mapping[float, float], int]
"""The quantiles of a part by fraction, from 0 to 1, and its number of values."""

_POINTS: Final = 512
"""Number of points that represent the distribution of each part."""


def spread(parts: Sequence[Part]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return float64[n]: values that represent all parts, and float64[n]: how many of the parts' values each is for."""
    known = [(quantiles, count) for quantiles, count in parts if quantiles and count]
    if not known:
        return np.empty(0), np.empty(0)
    at = (np.arange(_POINTS) + 0.5) / _POINTS
    values = np.concatenate([np.interp(at, list(each), list(each.values())) for each, _ in known])
    weights = np.concatenate([np.full(_POINTS, count / _POINTS) for _, count in known])
    return values, weights


def mixed_quantiles(parts: Sequence[Part]) -> dict[float, float]:
    """Estimate the quantiles of a mixture. The smallest and the largest value are exact."""
    known = [(quantiles, count) for quantiles, count in parts if quantiles and count]
    if len(known) <= 1:
        return dict(known[0][0]) if known else {}
    values, weights = spread(known)
    order = np.argsort(values)
    values, weights = values[order], weights[order]
    below = (np.cumsum(weights) - weights / 2) / weights.sum()
    fractions = sorted(known[0][0])
    mixed = dict(zip(fractions, np.interp(fractions, below, values).tolist(), strict=True))
    mixed[fractions[0]] = min(each[fractions[0]] for each, _ in known)
    mixed[fractions[-1]] = max(each[fractions[-1]] for each, _ in known)
    return mixed


Counts = TypeVar("Counts", replay_pb2.StepStats, replay_pb2.LimiterStats, replay_pb2.Rates)

_SUMMED: Final = (
    *("bytes", "evicted", "sampled", "updated", "stale", "unsynced", "failed_syncs", "repeated_inserts"),
    *("waiting", "waiting_inserts", "waited", "total_mass", "sampled_same_host", "overtaken", "batches"),
    "batches_ahead",
)
_IN_USE: Final = (replay_pb2.SHARD_STATE_ACTIVE, replay_pb2.SHARD_STATE_DRAINING)


class Report(Protocol):
    """What is known of a shard that was unreachable."""

    @property
    def inserted(self) -> int:
        """Rows ever inserted into it."""


class Bar(Protocol):
    """A bar of a histogram of rows by number of draws."""

    @property
    def at_least(self) -> int:
        """Lower bound."""

    @property
    def at_most(self) -> int:
        """Upper bound."""

    @property
    def rows(self) -> int:
        """Number of rows."""


R = TypeVar("R", bound=Report)


def shards_in_use(shards: replay_pb2.ShardMap) -> list[replay_pb2.Shard]:
    """Return the shards that are neither lost nor retired."""
    return [shard for shard in shards.shards if shard.state in _IN_USE]


def merged_table_stats(
    found: Mapping[int, replay_pb2.TableStats], shards: replay_pb2.ShardMap
) -> replay_pb2.TableStats:
    """Join the statistics of a table's shards, by id, at least one. Of reports about a shard, the newest is kept."""
    parts = list(found.values())
    reports = newest_reports((report.shard_id, report) for part in parts for report in part.reports)
    drawable = [part for part in parts if part.priorities]
    return replay_pb2.TableStats(
        table=_merged_description([part.table for part in parts]),
        **{name: sum(getattr(part, name) for part in parts) for name in _SUMMED},
        lost=sum(part.lost for part in parts)
        + sum(known_lost_rows(shard, parts, reports.get(shard.id)) for shard in shards.shards),
        rates=_merged_rates([part.rates for part in parts]),
        waits=_merged_waits([wait for part in parts for wait in part.waits]),
        largest_priority=max(part.largest_priority for part in parts),
        smallest_priority=min((part.smallest_priority for part in drawable), default=0.0),
        times_sampled=[
            replay_pb2.TimesSampled(at_least=at_least, at_most=at_most, rows=rows)
            for at_least, at_most, rows in added_bars(part.times_sampled for part in parts)
        ],
        rate_limiter=_added([part.rate_limiter for part in parts if part.HasField("rate_limiter")]),
        steps=_added([part.steps for part in parts if part.HasField("steps")]),
        reports=reports.values(),
        priorities=_mixed((part.priorities, drawable_rows(part)) for part in parts),
        ages_s=_mixed((part.ages_s, part.table.size) for part in parts),
    )


def newest_reports(reports: Iterable[tuple[int, R]]) -> dict[int, R]:
    """Return the newest of these reports about each shard by id: the one with the most inserts."""
    newest: dict[int, R] = {}
    for shard_id, report in reports:
        if shard_id not in newest or report.inserted > newest[shard_id].inserted:
            newest[shard_id] = report
    return newest


def known_lost_rows(
    shard: replay_pb2.Shard, parts: Sequence[replay_pb2.TableStats], report: replay_pb2.ShardReport | None
) -> int:
    """Count the rows of a table that were lost with a shard; 0 unless it is lost.

    They are known from the shard map or a client's report, whichever has seen more inserts. ``parts`` are the
    statistics of the table's other shards.
    """
    if shard.state != replay_pb2.SHARD_STATE_LOST:
        return 0
    name, uids = parts[0].table.config.name, {part.table.uid for part in parts}
    known = [each for each in shard.lost_rows if each.table == name and uids & set(each.table_uids)]
    heard: list[replay_pb2.LostRows | replay_pb2.ShardReport] = [*known, *([] if report is None else [report])]
    return max(heard, key=lambda each: each.inserted).size if heard else 0


def drawable_rows(stats: replay_pb2.TableStats) -> int:
    """Return the number of rows that can be drawn. Only they have priorities."""
    return stats.steps.drawable if stats.HasField("steps") else stats.table.size


def quantiles_of(message: Iterable[replay_pb2.Quantile]) -> dict[float, float]:
    """Return quantiles by fraction."""
    return {quantile.fraction: quantile.value for quantile in message}


def added_bars(parts: Iterable[Iterable[Bar]]) -> list[tuple[int, int, int]]:
    """Add up histograms: return both bounds of each bar, and the rows of all bars with these bounds."""
    rows: dict[tuple[int, int], int] = {}
    for bar in (bar for bars in parts for bar in bars):
        bounds = (bar.at_least, bar.at_most)
        rows[bounds] = rows.get(bounds, 0) + bar.rows
    return [(*bounds, count) for bounds, count in sorted(rows.items())]


def _merged_description(parts: Sequence[replay_pb2.TableDescription]) -> replay_pb2.TableDescription:
    """Describe the whole table: the first part, with sums of rows, slots, capacities and rate limiters' bounds."""
    whole = replay_pb2.TableDescription()
    whole.CopyFrom(parts[0])
    for name in ("size", "inserted", "slots"):
        setattr(whole, name, sum(getattr(part, name) for part in parts))
    whole.config.capacity = sum(part.config.capacity for part in parts)
    if whole.config.HasField("rate_limiter"):
        limits = [part.config.rate_limiter for part in parts]
        for name in ("min_size", "min_diff", "max_diff"):
            setattr(whole.config.rate_limiter, name, sum(getattr(limit, name) for limit in limits))
    whole.directory = whole.socket = ""
    return whole


def _merged_rates(parts: Sequence[replay_pb2.Rates]) -> replay_pb2.Rates | None:
    rates = _added(parts)
    if rates is not None:
        rates.window_s = max(part.window_s for part in parts)
    return rates


def _merged_waits(waits: Iterable[replay_pb2.WaitStats]) -> list[replay_pb2.WaitStats]:
    """Join the shards' statistics of calls that wait for the same thing."""
    by_what: dict[str, list[replay_pb2.WaitStats]] = {}
    for wait in waits:
        by_what.setdefault(wait.waited_for, []).append(wait)
    return [_joined_waits(same) for same in by_what.values()]


def _joined_waits(same: Sequence[replay_pb2.WaitStats]) -> replay_pb2.WaitStats:
    all_expected = all(wait.HasField("expected_s") for wait in same)
    return replay_pb2.WaitStats(
        waited_for=same[0].waited_for,
        calls=sum(wait.calls for wait in same),
        have=sum(wait.have for wait in same),
        needed=sum(wait.needed for wait in same),
        waited_s=max(wait.waited_s for wait in same),
        expected_s=max(wait.expected_s for wait in same) if all_expected else None,
    )


def _mixed(parts: Iterable[tuple[Iterable[replay_pb2.Quantile], int]]) -> list[replay_pb2.Quantile]:
    mixed = mixed_quantiles([(quantiles_of(quantiles), size) for quantiles, size in parts])
    return [replay_pb2.Quantile(fraction=fraction, value=value) for fraction, value in mixed.items()]


def _added(parts: Sequence[Counts]) -> Counts | None:
    """Add up all fields."""
    if not parts:
        return None
    names = [field.name for field in parts[0].DESCRIPTOR.fields]
    return type(parts[0])(**{name: sum(getattr(part, name) for part in parts) for name in names})
