"""Histograms of a table's priorities and ages for the live page, as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from replay_proto.merged_stats import drawable_rows, quantiles_of
from replay_proto.quantiles import Part, spread
from replay_proto.v1 import replay_pb2

from replay_server.table.distributions import some_ages_s, some_priorities
from replay_server.table.table import Table

FRACTIONS: Final = np.linspace(0.0, 1.0, 65).tolist()
"""Fractions of the quantiles that a histogram of several shards needs."""
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


class _Sample(NamedTuple):
    values: NDArray[np.float64]
    """float64[n]"""
    weights: NDArray[np.float64]
    """float64[n]: how many rows each value stands for."""

    @property
    def median(self) -> float:
        order = np.argsort(self.values)
        below = np.cumsum(self.weights[order])
        middle = np.searchsorted(below, [below[-1] / 2, np.nextafter(below[-1] / 2, np.inf)])
        return float(self.values[order][np.minimum(middle, len(order) - 1)].mean())


def distributions_of(table: Table, random: np.random.Generator) -> dict[str, Any]:
    """Return histograms of a table's priorities and ages. A histogram without values is None."""
    return _distributions(
        _equal(some_priorities(table, random)),
        _equal(some_ages_s(table)),
        table.smallest_priority,
        table.largest_priority,
    )


def mixed_distributions(parts: Sequence[replay_pb2.TableStats]) -> dict[str, Any]:
    """Estimate the same histograms of a table on several servers from the quantiles of its shards."""
    priorities: list[Part] = [(quantiles_of(part.priorities), drawable_rows(part)) for part in parts]
    ages_s: list[Part] = [(quantiles_of(part.ages_s), part.table.size) for part in parts]
    drawable = [part for part in parts if part.priorities]
    return _distributions(
        _Sample(*spread(priorities)),
        _Sample(*spread(ages_s)),
        min((part.smallest_priority for part in drawable), default=0.0),
        max((part.largest_priority for part in drawable), default=0.0),
    )


def short(value: float) -> float:
    """Round to six significant digits."""
    return float(f"{value:.6g}") if math.isfinite(value) else 0.0


def _equal(values: NDArray[np.float64]) -> _Sample:
    return _Sample(values, np.ones(len(values)))


def _distributions(priorities: _Sample, ages_s: _Sample, least: float, most: float) -> dict[str, Any]:
    return {
        "priorities": _of_priorities(priorities, least, most) if len(priorities.values) else None,
        "ages_s": _of_ages(ages_s) if len(ages_s.values) else None,
    }


def _of_ages(ages_s: _Sample) -> dict[str, Any]:
    """Return a histogram of ages. Small tables have few distinct ages, so there is at most one bar for each."""
    known = len(np.unique(ages_s.values.round(_AGE_DIGITS)))
    return {"median": short(ages_s.median), **_histogram(ages_s, bars=min(_BARS, known))}


def _of_priorities(sample: _Sample, least: float, most: float) -> dict[str, Any]:
    """Return a histogram of sampled priorities, with the table's exact minimum and maximum.

    On a logarithmic scale, zeros have no bar, but their fraction is returned.
    """
    is_above = sample.values > 0
    above_zero = _Sample(sample.values[is_above], sample.weights[is_above])
    logarithmic = bool(is_above.any()) and bool(above_zero.values.max() >= _LOGARITHMIC * above_zero.values.min())
    shown = above_zero if logarithmic else sample
    return {
        "least": short(least),
        "median": short(sample.median),
        "most": short(most),
        "zeros": short(1 - shown.weights.sum() / sample.weights.sum()),
        **_histogram(shown, logarithmic=logarithmic),
    }


def _histogram(sample: _Sample, *, bars: int = _BARS, logarithmic: bool = False) -> dict[str, Any]:
    """Return the fraction of values in each bar. All bars are equally wide on the linear or logarithmic scale.

    If all values are about equal, there is only one bar.
    """
    low, high = float(sample.values.min()), float(sample.values.max())
    if high - low <= max(_EQUAL * high, _NARROWEST):
        return {"low": short(high), "high": short(high), "logarithmic": False, "fractions": [1.0]}
    values = np.log(sample.values) if logarithmic else sample.values
    counts, _ = np.histogram(values, bars, weights=sample.weights)
    fractions = [short(fraction) for fraction in (counts / sample.weights.sum()).tolist()]
    return {"low": short(low), "high": short(high), "logarithmic": logarithmic, "fractions": fractions}
