"""What the live page shows, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from replay_proto.waits import wait_sentence

from replay_server.checkpoint.store import Checkpoint
from replay_server.flow.waits import Wait
from replay_server.http.snapshot import Limiter, TableSnapshot
from replay_server.rpc.endpoint import AnyEndpoint
from replay_server.storage.shard_map import ShardMap
from replay_server.table.distributions import some_ages_s, some_priorities
from replay_server.table.table import Table

_BARS: Final = 32
"""Bars of a histogram."""
_LOGARITHMIC: Final = 10.0
"""Histograms have a logarithmic scale if the largest value is at least this many times the smallest."""
_EQUAL: Final = 1e-3
"""Values are shown as one value if they differ by less than this fraction, because ages have a limited resolution."""
_AGE_DIGITS: Final = 2
_NARROWEST: Final = float(np.finfo(np.float64).tiny)
"""Values in a smaller range are shown as one value, because the range may have fewer float64 numbers than bars."""
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


def table_figures(
    snapshot: TableSnapshot, points: Mapping[str, Sequence[float]], distributions: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the figures of a table.

    Args:
        snapshot: the table's state.
        points: the table's newest rates, see `History.points`.
        distributions: the table's histograms, see `distributions_of`.
    """
    figures = snapshot.figures
    return {
        "name": snapshot.name,
        "backend": snapshot.backend,
        "rows": snapshot.rows,
        "capacity": snapshot.capacity,
        "drawable": snapshot.drawable,
        "inserted": snapshot.inserted,
        "drawn": figures.sampled,
        "updated": figures.updated,
        "stale": figures.stale,
        "inserted_per_s": _short(figures.inserted_per_s),
        "drawn_per_s": _short(figures.sampled_per_s),
        "updated_per_s": _short(figures.updated_per_s),
        "bytes": snapshot.reserved_bytes,
        "unsynced": snapshot.unsynced,
        "failed_syncs": figures.failed_syncs,
        "lost": snapshot.lost,
        "steps": None if snapshot.steps is None else snapshot.steps._asdict(),
        "limiter": None if snapshot.limiter is None else _limiter(snapshot.limiter),
        "waits": [_sentence(wait) for wait in snapshot.waits],
        "points": points,
        **_clients(snapshot),
        **distributions,
    }


def method_figures(name: str, endpoint: AnyEndpoint) -> dict[str, Any]:
    """Return the figures of an RPC. Its rate and latencies are those of about the last minute."""
    figures, recent = endpoint.figures, endpoint.figures.recent()
    return {
        "name": name,
        "calls": figures.calls,
        "errors": figures.errors,
        "active": figures.active,
        "calls_per_s": _short(recent.calls_per_s),
        "p50_ms": _short(recent.quantile_s(0.5) * _MS_PER_S),
        "p99_ms": _short(recent.quantile_s(0.99) * _MS_PER_S),
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


def shard_figures(shards: ShardMap | None) -> list[dict[str, Any]]:
    """Return the active and draining servers of the shard map; empty without a map.

    The server cannot tell which of them it is, because it does not know its own address.
    """
    in_use = () if shards is None else [shard for shard in shards.shards if shard.state in ("active", "draining")]
    return [{"id": shard.id, "address": shard.address, "state": shard.state} for shard in in_use]


def distributions_of(table: Table, random: np.random.Generator) -> dict[str, Any]:
    """Return histograms of a table's priorities and ages. A histogram without values is None."""
    priorities, ages_s = some_priorities(table, random), some_ages_s(table)
    return {
        "priorities": _of_priorities(table, priorities) if len(priorities) else None,
        "ages_s": _of_ages(ages_s) if len(ages_s) else None,
    }


def _of_ages(ages_s: NDArray[np.float64]) -> dict[str, Any]:
    """Return a histogram of ages. Small tables have few distinct ages, so there is at most one bar for each."""
    known = len(np.unique(ages_s.round(_AGE_DIGITS)))
    return {"median": _short(float(np.median(ages_s))), **_histogram(ages_s, bars=min(_BARS, known))}


def _of_priorities(table: Table, sample: NDArray[np.float64]) -> dict[str, Any]:
    """Return a histogram of sampled priorities, with the table's exact minimum and maximum.

    On a logarithmic scale, zeros have no bar, but their fraction is returned.
    """
    above_zero = sample[sample > 0]
    logarithmic = len(above_zero) > 0 and bool(above_zero.max() >= _LOGARITHMIC * above_zero.min())
    shown = above_zero if logarithmic else sample
    return {
        "least": _short(table.smallest_priority),
        "median": _short(float(np.median(sample))),
        "most": _short(table.largest_priority),
        "zeros": _short(1 - len(shown) / len(sample)),
        **_histogram(shown, logarithmic=logarithmic),
    }


def _histogram(values: NDArray[np.float64], *, bars: int = _BARS, logarithmic: bool = False) -> dict[str, Any]:
    """Return the fraction of values in each bar. All bars are equally wide on the linear or logarithmic scale.

    If all values are about equal, there is only one bar.
    """
    low, high = float(values.min()), float(values.max())
    if high - low <= max(_EQUAL * high, _NARROWEST):
        return {"low": _short(high), "high": _short(high), "logarithmic": False, "fractions": [1.0]}
    counts, _ = np.histogram(np.log(values) if logarithmic else values, bars)
    fractions = [_short(fraction) for fraction in (counts / len(values)).tolist()]
    return {"low": _short(low), "high": _short(high), "logarithmic": logarithmic, "fractions": fractions}


def _limiter(limiter: Limiter) -> dict[str, float | None]:
    return {
        "difference": _short(limiter.difference),
        "least": _short(limiter.least) if abs(limiter.least) < _UNBOUNDED else None,
        "most": _short(limiter.most) if abs(limiter.most) < _UNBOUNDED else None,
    }


def _clients(snapshot: TableSnapshot) -> dict[str, Any]:
    """Return the busiest clients, and the number of all others."""
    rated = [(client.rates(), client) for client in snapshot.clients]
    rated.sort(key=lambda each: (-each[0].rows_per_s, each[1].caller, each[1].role))
    shown = [
        {
            "caller": client.caller,
            "role": client.role,
            "streams": client.streams,
            "rows_per_s": _short(rates.rows_per_s),
            "updates_per_s": _short(rates.updates_per_s),
        }
        for rates, client in rated[:_CLIENTS]
    ]
    return {"clients": shown, "other_clients": len(rated) - len(shown)}


def _sentence(wait: Wait) -> str:
    lack = wait.lack
    return wait_sentence(lack.waited_for, wait.calls, lack.have, lack.needed, wait.waited_s, wait.expected_s)


def _short(value: float) -> float:
    """Round to six significant digits."""
    return float(f"{value:.6g}") if math.isfinite(value) else 0.0
