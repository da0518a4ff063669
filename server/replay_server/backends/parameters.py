"""What the parameters of all backends have in common: how they are checked, and how a wrong one is reported."""

from __future__ import annotations

import math


class ParameterError(ValueError):
    """A backend was asked for with a name or a parameter that does not exist or is out of range.

    Attributes:
        field: what is wrong: ``backend``, or the name of a parameter.
        expected: what would have been right.
        got: what came.
    """

    def __init__(self, field: str, expected: str, got: object) -> None:
        """Say what was expected of ``field`` and what came instead."""
        super().__init__(f"{field}: expected {expected}, got {got!r}")
        self.field = field
        self.expected = expected
        self.got = got


def require_not_negative(field: str, value: float) -> None:
    """Raise `ParameterError` unless ``value`` is a finite number of at least 0."""
    if not _is_finite_number(value) or value < 0.0:
        raise ParameterError(field, "a finite number of at least 0", value)


def require_positive(field: str, value: float) -> None:
    """Raise `ParameterError` unless ``value`` is a finite number above 0."""
    if not _is_finite_number(value) or value <= 0.0:
        raise ParameterError(field, "a finite number above 0", value)


def _is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
