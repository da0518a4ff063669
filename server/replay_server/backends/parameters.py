"""What the parameters of all backends have in common: how they are checked, and how a wrong one is reported."""

from __future__ import annotations

import math

from replay_proto.errors import FieldError


def require_not_negative(field: str, value: float) -> None:
    """Raise `FieldError` unless ``value`` is a finite number of at least 0."""
    if not _is_finite_number(value) or value < 0.0:
        raise FieldError(field, "a finite number of at least 0", repr(value))


def require_positive(field: str, value: float) -> None:
    """Raise `FieldError` unless ``value`` is a finite number above 0."""
    if not _is_finite_number(value) or value <= 0.0:
        raise FieldError(field, "a finite number above 0", repr(value))


def _is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
