"""Mixes the quantiles of several parts, such as the shards of a table.

All results are estimates, on the assumption that the values of each part are evenly spread between its own quantiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

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
