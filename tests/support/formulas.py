"""Probabilities and weights as in the paper, over a plain list of live rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def probabilities(backend: str, parameters: Mapping[str, float], priorities: Floats) -> Floats:
    """Probability of each live row (Schaul et al. 2016, equation 1).

    Args:
        backend: of the table.
        parameters: all of its parameters.
        priorities: float64[size], of the live rows, oldest first.
    """
    mass = masses(backend, parameters, priorities)
    total = mass.sum()
    result: Floats = mass / total if total > 0 else np.full(len(mass), 1 / len(mass))
    return result


def weights(chosen: Floats, reference: float, size: int, beta: float) -> Floats:
    """Importance-sampling weights (section 3.4): (N * P) ** -beta over that of the reference probability."""
    result: Floats = (size * chosen) ** -beta / (size * reference) ** -beta
    return result


def masses(backend: str, parameters: Mapping[str, float], priorities: Floats) -> Floats:
    """Mass of each live row; arguments as of `probabilities`."""
    if backend == "uniform":
        return np.ones(len(priorities))
    if backend == "rank":
        newest_first = np.arange(len(priorities))[::-1]
        order = newest_first[np.argsort(-priorities[newest_first], kind="stable")]
        ranks = np.empty(len(priorities))
        ranks[order] = np.arange(1, len(priorities) + 1)
        by_rank: Floats = ranks ** -parameters["alpha"]
        return by_rank
    capped = np.minimum(priorities + parameters["epsilon"], parameters.get("max_priority", np.inf))
    proportional: Floats = capped ** parameters["alpha"]
    return proportional
