"""Statistics over a few runs, as Agarwal et al. (2021, arXiv:2108.13264) advise: their library `rliable` has the same.

Mean and interquartile mean, the probability that one method does better than another, and for each a 95 % interval by
the percentile bootstrap over runs, which scipy computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 2_000
SEED: Final = 0
TRIMMED: Final = 0.25
"""What an interquartile mean leaves out at either end."""


@dataclass(frozen=True)
class Estimate:
    """A statistic with its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """For people."""
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


def mean(runs: NDArray[np.float64]) -> Estimate:
    """Mean of float64[runs]."""
    return _estimate([runs], _mean)


def interquartile_mean(runs: NDArray[np.float64]) -> Estimate:
    """Mean of the middle half of float64[runs]."""
    return _estimate([runs], _interquartile_mean)


def probability_of_improvement(runs: NDArray[np.float64], others: NDArray[np.float64]) -> Estimate:
    """Probability that a run of float64[runs] has more than one of float64[others]; of equals, half."""
    return _estimate([runs, others], _probability_of_improvement)


def _mean(runs: NDArray[np.float64], axis: int = -1) -> Any:
    return np.mean(runs, axis=axis)


def _interquartile_mean(runs: NDArray[np.float64], axis: int = -1) -> Any:
    return stats.trim_mean(runs, TRIMMED, axis=axis)


def _probability_of_improvement(runs: NDArray[np.float64], others: NDArray[np.float64], axis: int = -1) -> Any:
    """The Mann-Whitney statistic over the number of pairs."""
    differences = np.moveaxis(runs, axis, -1)[..., :, None] - np.moveaxis(others, axis, -1)[..., None, :]
    return np.mean((np.sign(differences) + 1.0) / 2.0, axis=(-2, -1))


def _estimate(samples: Sequence[NDArray[np.float64]], statistic: Callable[..., Any]) -> Estimate:
    value = float(statistic(*samples))
    if min(map(len, samples)) < 2:  # nothing to resample
        return Estimate(value, value, value)
    found = stats.bootstrap(
        samples,
        statistic,
        vectorized=True,
        paired=False,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(SEED),
    )
    return Estimate(value, float(found.confidence_interval.low), float(found.confidence_interval.high))
