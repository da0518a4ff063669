"""Statistics over a few runs, as recommended by Agarwal et al. (2021, arXiv:2108.13264; their library is `rliable`).

The 95 % intervals of mean and interquartile mean come from scipy's percentile bootstrap over runs. For the
probability that one method beats another, the interval is Newcombe's (2006, Statistics in Medicine 25, 559-573, method
5), which stays wide if there are few runs. If all runs of one method beat those of the other, a bootstrap would give an
interval of zero width, even with only two runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 2_000
SEED: Final = 0
TRIMMED: Final = 0.25
"""Fraction trimmed at each end for an interquartile mean."""
_NEXT: Final = 1e-9
"""Distance from the observed probability at which the search for a bound of the interval starts."""


@dataclass(frozen=True)
class Estimate:
    """A statistic with its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """The value, and its interval in parentheses."""
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


def mean(runs: NDArray[np.float64]) -> Estimate:
    """Return the mean of float64[runs], with its interval."""
    return _estimate(runs, _mean)


def interquartile_mean(runs: NDArray[np.float64]) -> Estimate:
    """Return the mean of the middle half of float64[runs], with its interval."""
    return _estimate(runs, _interquartile_mean)


def probability_of_improvement(runs: NDArray[np.float64], others: NDArray[np.float64]) -> Estimate:
    """Return the probability that a run of float64[runs] exceeds one of float64[others], with its interval.

    This is the Mann-Whitney statistic divided by the number of pairs. Ties count half.
    """
    differences = runs[:, None] - others[None, :]
    value = float(np.mean((np.sign(differences) + 1.0) / 2.0))
    pairs, mean_runs = differences.size, (len(runs) + len(others)) / 2
    quantile = stats.norm.ppf((1 + CONFIDENCE) / 2)

    def beyond(truth: float) -> float:
        """Return a number that is negative if ``truth`` is within the interval."""
        spread = 1 + (mean_runs - 1) * ((1 - truth) / (2 - truth) + truth / (1 + truth))
        return float((truth - value) ** 2 - quantile**2 * truth * (1 - truth) * spread / pairs)

    low = 0.0 if value == 0.0 else optimize.brentq(beyond, 0.0, value - _NEXT)
    high = 1.0 if value == 1.0 else optimize.brentq(beyond, value + _NEXT, 1.0)
    return Estimate(value, low, high)


def _mean(runs: NDArray[np.float64], axis: int = -1) -> Any:
    return np.mean(runs, axis=axis)


def _interquartile_mean(runs: NDArray[np.float64], axis: int = -1) -> Any:
    return stats.trim_mean(runs, TRIMMED, axis=axis)


def _estimate(runs: NDArray[np.float64], statistic: Callable[..., Any]) -> Estimate:
    value = float(statistic(runs))
    if len(runs) < 2:  # nothing to resample
        return Estimate(value, value, value)
    found = stats.bootstrap(
        [runs],
        statistic,
        vectorized=True,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(SEED),
    )
    return Estimate(value, float(found.confidence_interval.low), float(found.confidence_interval.high))
