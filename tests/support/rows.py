"""Rows that can be checked for integrity: all values derive from one number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array, column_views
from replay_proto.schema import Column, Schema

WHOLE = Schema({"value": Column("int64"), "payload": Column("float32", (3,)), "check": Column("uint64")})
"""Columns of three sizes; `payload` and `check` follow from `value`."""
MUTABLE = Schema({name: Column(column.dtype, column.shape, mutable=True) for name, column in WHOLE.items()})
"""The same columns, which may be written again."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_STEPS = np.array([1, 7, 31], np.int64)
_MODULUS = 1 << 20


def columns_of(values: NDArray[np.int64]) -> dict[str, Array]:
    """The columns of rows with these values."""
    return {"value": values, "payload": _payload(values), "check": _check(values)}


def rows_of(values: NDArray[np.int64]) -> bytes:
    """Serialized rows with these values."""
    return b"".join(np.ascontiguousarray(column).tobytes() for column in columns_of(values).values())


def values_in(rows: bytes) -> NDArray[np.int64]:
    """The values of received rows, after checking that every row is intact."""
    count, rest = divmod(len(rows), WHOLE.row_bytes)
    assert rest == 0, f"{rest} bytes too many for whole rows"
    columns = column_views(WHOLE, memoryview(rows), count)
    values = columns["value"].astype(np.int64)
    torn = (columns["payload"] != _payload(values)).any(axis=1) | (columns["check"] != _check(values))
    assert not torn.any(), f"torn rows at {np.flatnonzero(torn)[:5]} of {count}"
    return values


def _payload(values: NDArray[np.int64]) -> NDArray[np.float32]:
    return ((values[:, None] * _STEPS) % _MODULUS).astype(np.float32)


def _check(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    return values.astype(np.uint64) * _MULTIPLIER
