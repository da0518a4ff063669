"""Histograms of a table's priorities and ages for the live page, as JSON."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from replay_server.table.distributions import some_ages_s, some_priorities
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
