"""Tells whether an observation before a step is the one after the step before, so that its episode goes on.

Observations are compared bit by bit. With ``==``, no observation with a NaN would equal itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = Mapping[str, NDArray[Any]]
"""Values by column; both sides of a comparison have the same dtypes and shapes."""


def are_same(values: Values, others: Values) -> bool:
    """Whether all values of the columns of ``others`` are the same in ``values``."""
    return all(values[name].tobytes() == other.tobytes() for name, other in others.items())  # faster than arrays


def same_rows(values: Values, others: Values, row_count: int) -> NDArray[np.bool_]:
    """Return bool[row_count]: which rows ``[row_count, *shape]`` are the same in all columns of ``others``."""
    same = np.ones(row_count, bool)
    for name, other in others.items():
        same &= (_bits(values[name]) == _bits(other)).reshape(row_count, -1).all(axis=1)
    return same


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    """View floating-point numbers as integers; comparing integers and bools compares their bits anyway."""
    return values.view(f"u{values.dtype.itemsize}") if values.dtype.kind == "f" else values
