"""Validation of backend parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from replay_proto.errors import FieldError

T = TypeVar("T")


def read_parameters(kind: type[T], name: str, given: Mapping[str, Any]) -> T:
    """Create the parameters of backend ``name``, with defaults for missing ones.

    Raises:
        FieldError: a parameter is unknown or out of range.
    """
    accepted = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for field in given:
        if field not in accepted:
            raise FieldError(
                field, f"a parameter of {name} ({', '.join(accepted) or 'it has none'})", repr(given[field])
            )
    return kind(**given)


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
