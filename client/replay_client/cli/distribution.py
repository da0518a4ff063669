"""Histograms and slopes computed from `Table.inspect`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from replay_client.results.description import FIFO, RANK
from replay_client.results.inspection import Inspection
from replay_client.results.stats import TimesSampled

Floats = NDArray[np.float64]

BARS = 10
PROPORTIONAL = "sum_tree"
"""The backend that draws by powers of priorities."""
_WIDE_RATIO = 100.0
"""Above this ratio of the largest to the smallest value, the axis is logarithmic."""
_LEAST_SHARE = 0.01
"""Fraction of the rows with the smallest values to ignore when comparing with `_WIDE_RATIO`."""


@dataclass(frozen=True)
class Bar:
    """Number of rows with values in an interval."""

    low: float
    """Lower bound of the interval."""
    high: float
    """Upper bound; equal to the lower one for a single value."""
    rows: float
    """Number of rows."""


@dataclass(frozen=True)
class PowerLaw:
    """The function ``probability = factor * x ** exponent``, fitted to logarithms of both sides.

    In the fit, each decade of ranks has the same weight.
    """

    exponent: float
    factor: float

    def at(self, x: Floats) -> Floats:
        """Return the fitted probabilities float64[n] at ``x``."""
        return np.asarray(self.factor * x**self.exponent)


@dataclass(frozen=True, eq=False)
class Distributions:
    """All plotted distributions of a table."""

    inspection: Inspection
    """The inspection from which the distributions were computed."""
    beta: float
    """Exponent of the weights."""
    priorities: Sequence[Bar]
    """Histogram of rows by priority."""
    weights: Sequence[Bar]
    """Histogram of rows by importance-sampling weight; empty for a queue."""
    ages_s: Sequence[Bar]
    """Histogram of rows by age in seconds."""
    times_sampled: Sequence[Bar]
    """Histogram of rows by number of draws."""
    mean_weight: float
    """Mean weight of a drawn row."""
    by_rank: PowerLaw | None
    """Fit of probability against rank, if the backend draws by powers of ranks and a fit is possible; else None."""
    by_priority: PowerLaw | None
    """Fit of probability against priority, if the backend draws by powers of priorities and a fit is possible."""

    @property
    def is_drawn_by_priority(self) -> bool:
        """Whether probabilities and weights are meaningful; False for an empty table and for a queue."""
        return self.inspection.table.backend != FIFO and len(self.inspection.ranks) > 0

    @classmethod
    def of(cls, inspection: Inspection, beta: float, most_bars: int | None = None) -> Distributions:
        """Compute the distributions, with at most so many bars per histogram, at least 1.

        If ``most_bars`` is None, the histogram of numbers of draws has a bar for each power of two, and the others have
        up to `BARS` bars.
        """
        is_queue = inspection.table.backend == FIFO
        rows, probabilities = inspection.rows, inspection.probabilities
        weights = inspection.weights(beta)
        drawn = probabilities * rows
        ages = inspection.ages_s
        widths = decades(inspection)
        count = BARS if most_bars is None else min(most_bars, BARS)
        times_sampled = inspection.times_sampled if most_bars is None else merged(inspection.times_sampled, most_bars)
        return cls(
            inspection=inspection,
            beta=beta,
            priorities=bars(inspection.priorities, rows, count),
            weights=() if is_queue else bars(weights, rows, count),
            ages_s=bars(ages, np.full(len(ages), inspection.table.size / max(1, len(ages))), count),
            times_sampled=[Bar(float(bar.at_least), float(bar.at_most), float(bar.rows)) for bar in times_sampled],
            mean_weight=float((drawn * weights).sum() / drawn.sum()) if len(drawn) else 0.0,
            by_rank=None
            if inspection.table.backend != RANK
            else fitted(inspection.ranks.astype(np.float64), probabilities, widths),
            by_priority=None
            if inspection.table.backend != PROPORTIONAL
            else fitted(priorities_in_force(inspection), probabilities, widths),
        )


def bars(values: Floats, rows: Floats, count: int = BARS) -> list[Bar]:
    """Divide the range of the values, at least 0, into intervals, and count the rows in each.

    The intervals are logarithmic if the positive values span more than two orders of magnitude, even without their
    smallest 1 %. In this case, the first interval includes this smallest 1 %, and zeros have a separate bar.
    ``rows``, float64[n], is the number of rows with each value.
    """
    if not len(values):
        return []
    least, most = float(values.min()), float(values.max())
    if least == most:
        return [Bar(least, most, float(rows.sum()))]
    positive = values > 0
    first = _quantile(values[positive], rows[positive], _LEAST_SHARE)
    if most / first <= _WIDE_RATIO:
        return _counted(values, rows, np.linspace(least, most, count + 1))
    zeros = [] if positive.all() else [Bar(0.0, 0.0, float(rows[~positive].sum()))]
    edges = np.geomspace(first, most, count + 1 - len(zeros))
    edges[0], edges[-1] = float(values[positive].min()), most
    return zeros + _counted(values[positive], rows[positive], edges)


def labelled(bars: Sequence[Bar], as_text: Callable[[float], str]) -> list[tuple[str, float]]:
    """Return the labels and row counts of bars; bars with the same label are merged."""
    merged: dict[str, float] = {}
    for bar in bars:
        low, high = as_text(bar.low), as_text(bar.high)
        name = low if low == high else f"{low} - {high}"
        merged[name] = merged.get(name, 0.0) + bar.rows
    return list(merged.items())


def priorities_in_force(inspection: Inspection) -> Floats:
    """Return the priorities float64[m] as the backend uses them: ``min(priority + epsilon, max_priority)``."""
    parameters = inspection.table.parameters
    most = parameters.get("max_priority", np.inf)
    return np.asarray(np.minimum(inspection.priorities + parameters.get("epsilon", 0.0), most))


def decades(inspection: Inspection) -> Floats:
    """Return float64[m]: the width, in decades, of the interval of ranks that each selected rank represents."""
    ends = 0.5 + np.concatenate([[0.0], np.cumsum(inspection.rows)])
    return np.diff(np.log10(ends))


def fitted(x: Floats, probabilities: Floats, weights: Floats) -> PowerLaw | None:
    """Fit a power law by weighted least squares on the logarithms; return None if all ``x`` are equal."""
    usable = (x > 0) & (probabilities > 0)
    if not usable.any() or x[usable].min() == x[usable].max():
        return None
    log_x, log_p, weight = np.log(x[usable]), np.log(probabilities[usable]), weights[usable]
    centre_x, centre_p = np.average(log_x, weights=weight), np.average(log_p, weights=weight)
    spread = float((weight * (log_x - centre_x) ** 2).sum())
    exponent = float((weight * (log_x - centre_x) * (log_p - centre_p)).sum()) / spread
    return PowerLaw(exponent, float(np.exp(centre_p - exponent * centre_x)))


def _quantile(values: Floats, rows: Floats, fraction: float) -> float:
    """Return a weighted quantile: the smallest value with at least this fraction of the rows at or below it."""
    order = np.argsort(values)
    below = np.cumsum(rows[order])
    return float(values[order][np.searchsorted(below, fraction * below[-1])])


def _counted(values: Floats, rows: Floats, edges: Floats) -> list[Bar]:
    counts, _ = np.histogram(values, edges, weights=rows)
    return [
        Bar(float(low), float(high), float(count))
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]


def merged(drawn: Sequence[TimesSampled], most: int) -> Sequence[TimesSampled]:
    """Merge neighboring bars of a histogram in pairs until at most ``most`` bars (at least 1) remain."""
    while len(drawn) > most:
        pairs = [drawn[place : place + 2] for place in range(0, len(drawn), 2)]
        drawn = [replace(pair[0], at_most=pair[-1].at_most, rows=sum(bar.rows for bar in pair)) for pair in pairs]
    return drawn
