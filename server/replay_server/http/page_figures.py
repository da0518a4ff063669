"""What the live page shows, as JSON: the figures of a table, histograms of its priorities and ages, checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from replay_proto.merged_stats import drawable_rows
from replay_proto.v1 import replay_pb2
from replay_proto.waits import wait_sentence

from replay_server.checkpoint.store import Checkpoint
from replay_server.rpc.endpoint import AnyEndpoint
from replay_server.table.clients import Client
from replay_server.table.inspection import some_ages_s, some_priorities
from replay_server.table.table import Table

REFRESH_S: Final = 5.0
"""Minimum age, in seconds, at which a table's histograms are computed again."""
_BARS: Final = 32
"""Bars of a histogram."""
_LOGARITHMIC: Final = 10.0
"""Histograms have a logarithmic scale if the largest value is at least this many times the smallest."""
_EQUAL: Final = 1e-3
"""Values are shown as one value if they differ by less than this fraction, because ages have a limited resolution."""
_AGE_DIGITS: Final = 2
_NARROWEST: Final = float(np.finfo(np.float64).tiny)
"""Values in a smaller range are shown as one value, because the range may have fewer float64 numbers than bars."""


def distributions_of(table: Table, random: np.random.Generator) -> dict[str, Any]:
    """Return histograms of a table's priorities and ages. A histogram without values is None."""
    priorities, ages_s = some_priorities(table, random), some_ages_s(table)
    least, most = table.smallest_priority, table.largest_priority
    return {
        "priorities": _of_priorities(priorities, least, most) if len(priorities) else None,
        "ages_s": _of_ages(ages_s) if len(ages_s) else None,
    }


def short(value: float) -> float:
    """Round to six significant digits."""
    return float(f"{value:.6g}") if math.isfinite(value) else 0.0


def _of_ages(ages_s: NDArray[np.float64]) -> dict[str, Any]:
    """Return a histogram of ages. Small tables have few distinct ages, so there is at most one bar for each."""
    known = len(np.unique(ages_s.round(_AGE_DIGITS)))
    return {"median": short(float(np.median(ages_s))), **_histogram(ages_s, bars=min(_BARS, known))}


def _of_priorities(priorities: NDArray[np.float64], least: float, most: float) -> dict[str, Any]:
    """Return a histogram of sampled priorities, with the table's exact minimum and maximum.

    On a logarithmic scale, zeros have no bar, but their fraction is returned.
    """
    above_zero = priorities[priorities > 0]
    logarithmic = len(above_zero) > 0 and bool(above_zero.max() >= _LOGARITHMIC * above_zero.min())
    shown = above_zero if logarithmic else priorities
    return {
        "least": short(least),
        "median": short(float(np.median(priorities))),
        "most": short(most),
        "zeros": short(1 - len(shown) / len(priorities)),
        **_histogram(shown, logarithmic=logarithmic),
    }


def _histogram(values: NDArray[np.float64], *, bars: int = _BARS, logarithmic: bool = False) -> dict[str, Any]:
    """Return the fraction of values in each bar. All bars are equally wide on the linear or logarithmic scale.

    If all values are about equal, there is only one bar.
    """
    low, high = float(values.min()), float(values.max())
    if high - low <= max(_EQUAL * high, _NARROWEST):
        return {"low": short(high), "high": short(high), "logarithmic": False, "fractions": [1.0]}
    counts, _ = np.histogram(np.log(values) if logarithmic else values, bars)
    fractions = [short(fraction) for fraction in (counts / len(values)).tolist()]
    return {"low": short(low), "high": short(high), "logarithmic": logarithmic, "fractions": fractions}


_CLIENTS: Final = 20
"""Maximum clients of a table to name."""
_CHECKPOINTS: Final = 10
"""Maximum checkpoints to name."""
_MS_PER_S: Final = 1000.0
_UNBOUNDED: Final = 1e15
"""A rate limiter's bound of at least this magnitude is shown as unbounded."""


def to_json(figures: object) -> str:
    """Serialize figures compactly."""
    return json.dumps(figures, allow_nan=False, separators=(",", ":"))


def table_figures(stats: replay_pb2.TableStats) -> dict[str, Any]:
    """Return the figures of a table that Stats has, too."""
    return {
        "name": stats.table.config.name,
        "backend": stats.table.config.backend.name,
        "rows": stats.table.size,
        "capacity": stats.table.config.capacity,
        "drawable": drawable_rows(stats),
        "inserted": stats.table.inserted,
        "drawn": stats.sampled,
        "updated": stats.updated,
        "stale": stats.stale,
        "inserted_per_s": short(stats.rates.inserted_per_s),
        "drawn_per_s": short(stats.rates.sampled_per_s),
        "updated_per_s": short(stats.rates.updated_per_s),
        "bytes": stats.bytes,
        "unsynced": stats.unsynced,
        "failed_syncs": stats.failed_syncs,
        "lost": stats.lost,
        "steps": {"pending": stats.steps.pending, "broken": stats.steps.broken} if stats.HasField("steps") else None,
        "limiter": _limiter(stats) if stats.HasField("rate_limiter") else None,
        "waits": [_sentence(wait) for wait in stats.waits],
    }


def client_figures(clients: Iterable[Client]) -> dict[str, Any]:
    """Return the busiest clients of a table, and the number of all others."""
    rated = [(client.rates(), client) for client in clients]
    rated.sort(key=lambda each: (-each[0].rows_per_s, each[1].caller, each[1].role))
    shown = [
        {
            "caller": client.caller,
            "role": client.role,
            "streams": client.streams,
            "rows_per_s": short(rates.rows_per_s),
            "updates_per_s": short(rates.updates_per_s),
        }
        for rates, client in rated[:_CLIENTS]
    ]
    return {"clients": shown, "other_clients": len(rated) - len(shown)}


def method_figures(name: str, endpoint: AnyEndpoint) -> dict[str, Any]:
    """Return the figures of an RPC. Its rate and latencies are those of about the last minute."""
    figures, recent = endpoint.figures, endpoint.figures.recent()
    return {
        "name": name,
        "calls": figures.calls,
        "errors": figures.errors,
        "active": figures.active,
        "calls_per_s": short(recent.calls_per_s),
        "p50_ms": short(recent.quantile_s(0.5) * _MS_PER_S),
        "p99_ms": short(recent.quantile_s(0.99) * _MS_PER_S),
    }


def checkpoint_figures(checkpoints: Sequence[Checkpoint]) -> list[dict[str, Any]]:
    """Return the newest checkpoints, newest first."""
    return [
        {
            "name": found.folder.name,
            "taken_s": found.manifest.taken_s,
            "bytes": found.manifest.nbytes,
            "tables": len(found.manifest.tables),
        }
        for found in reversed(checkpoints[-_CHECKPOINTS:])
    ]


def _limiter(stats: replay_pb2.TableStats) -> Mapping[str, float | None]:
    limit = stats.table.config.rate_limiter
    has_ratio = limit.samples_per_insert > 0
    return {
        "difference": short(stats.rate_limiter.difference),
        "least": short(limit.min_diff) if has_ratio and abs(limit.min_diff) < _UNBOUNDED else None,
        "most": short(limit.max_diff) if has_ratio and abs(limit.max_diff) < _UNBOUNDED else None,
    }


def _sentence(wait: replay_pb2.WaitStats) -> str:
    expected_s = wait.expected_s if wait.HasField("expected_s") else None
    return wait_sentence(wait.waited_for, wait.calls, wait.have, wait.needed, wait.waited_s, expected_s)
