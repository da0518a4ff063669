"""Sums of j ** -alpha, the total masses of tables with the backend ``rank``."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np

_ADDED: Final = 64
"""Number of terms that are added one by one; the Euler-Maclaurin formula gives the sum of the rest."""
_STEEPEST: Final = 100.0
"""With larger exponents, the terms that are not added one by one are too small to change the sum."""
_BERNOULLI: Final = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600)
"""B_2k / (2k)! for k from 1 on."""


@lru_cache(maxsize=256)
def power_sum(count: int, alpha: float) -> float:
    """Return the sum of j ** -alpha for j from 1 to ``count``, with a relative error of about 1e-15."""
    first = np.arange(1, min(count, _ADDED) + 1, dtype=np.float64)
    total = math.fsum(first**-alpha)
    if count > _ADDED and alpha < _STEEPEST:
        total += _tail(float(_ADDED), float(count), alpha) - _ADDED**-alpha
    return total


def _tail(start: float, end: float, alpha: float) -> float:
    """Return the sum of j ** -alpha for j from ``start`` to ``end``, both included.

    The error, which is the remainder of the Euler-Maclaurin formula, is negligible if ``start`` is at least 64.
    """
    exponent = 1.0 - alpha
    log_ratio = math.log(end / start)
    growth = log_ratio if exponent == 0.0 else math.expm1(exponent * log_ratio) / exponent
    total: float = start**exponent * growth + (start**-alpha + end**-alpha) / 2
    factor = alpha  # alpha * (alpha + 1) * ...: the derivatives of x ** -alpha, without their signs
    for number, coefficient in enumerate(_BERNOULLI):
        order = 2 * number + 1
        total += coefficient * factor * (start ** (-alpha - order) - end ** (-alpha - order))
        factor *= (alpha + order) * (alpha + order + 1)
    return total
