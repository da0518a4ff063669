"""Shared by the buffers of other libraries: the columns of an example, and whether two observations are the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from replay_proto.errors import FieldError
from replay_proto.schema import Column, Schema

from replay_client._rows.checks import as_array, described, flat_items
from replay_client.errors import InvalidArgumentError


def columns_from_example(example: Mapping[str, Any]) -> dict[str, Column]:
    """Derive the columns of a table from the values of one row.

        columns = columns_from_example({"obs": obs, "action": 0, "reward": np.float32(0), "terminated": False})
        table = client.create_table("replay", columns=columns, capacity=1_000_000)

    Args:
        example: values of one row by name, as for `Writer.append`: numbers, arrays, tensors, or mappings and tuples of
            them, whose parts become columns such as ``obs/camera``. Python's numbers become int64 and float64.

    Raises:
        InvalidArgumentError: the example is no mapping, two values have the same name, or a table cannot store a value
            of this dtype or shape, or a column of this name.
    """
    if not isinstance(example, Mapping):
        raise InvalidArgumentError.of_field("example", "a mapping of names to values", type(example).__name__)
    rows: dict[str, NDArray[Any]] = {}
    for name, value in (item for named in example.items() for item in flat_items(*named)):
        if name in rows:
            raise InvalidArgumentError.of_field(f"example.{name}", "one value of this name", "several")
        try:
            rows[name] = as_array(value)[None]
        except (ValueError, TypeError, RuntimeError) as error:
            raise InvalidArgumentError.of_field(f"example.{name}", "a number or an array", str(error)) from None
    return columns_of(rows)


def columns_of(rows: Mapping[str, NDArray[Any]]) -> dict[str, Column]:
    """Derive columns from rows: values by column name, ``[n, *shape]``."""
    columns = {}
    for name, values in rows.items():
        try:
            columns[name] = Column(values.dtype, values.shape[1:])
        except FieldError as error:
            raise InvalidArgumentError.of_field(f"columns.{name}.{error.field}", error.expected, error.got) from None
    return dict(Schema(columns))


def check_same_columns(schema: Schema, rows: Mapping[str, NDArray[Any]]) -> None:
    """Check that rows have exactly the columns of a table, with its dtypes and shapes."""
    for name in (*schema, *rows):
        if name not in rows:
            raise InvalidArgumentError.of_field(f"columns.{name}", f"{schema[name]}, as in the table", "no such value")
        if name not in schema:
            expected = f"one of the table's columns ({', '.join(schema)})"
            raise InvalidArgumentError.of_field(f"columns.{name}", expected, described(rows[name]))
        column, values = schema[name], rows[name]
        if (values.dtype, values.shape[1:]) != (column.dtype, column.shape):
            raise InvalidArgumentError.of_field(f"columns.{name}", f"{column}, as in the table", described(values[:1]))


Values: TypeAlias = Mapping[str, NDArray[Any]]
"""Values by column; both sides of a comparison have the same dtypes and shapes."""


def are_same(values: Values, others: Values) -> bool:
    """Whether all values of the columns of ``others`` are the same in ``values``, bit by bit.

    With ``==``, no observation with a NaN would equal itself.
    """
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
