"""A block of rows, added one by one and sent together.

    block = RowBlock(schema, capacity=1024)
    block.add({"obs": obs, "action": 1}, priority=None)         # copied; the caller may reuse its arrays
    message = block.take(head)                                  # the wire form; the block is empty again

Every step of every actor calls `add`, so it has a fast path: plain numbers, and arrays with exactly the column's dtype
and shape, are stored directly. All other values take the slow path, where `replay_client._rows.checks` checks and casts
them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from replay_proto.framing import Array
from replay_proto.schema import DTYPES, Column, Schema
from replay_proto.v1 import replay_pb2

from replay_client._rows.checks import checked_array, checked_value, flattened, packed_rows
from replay_client.errors import InvalidArgumentError

_PRIORITY: Final = Column("float64")
_SLOW_DTYPES: Final = ("float16",)
"""Dtypes that memoryview cannot store."""
_BOOLEANS: Final[frozenset[type]] = frozenset({bool, np.bool_})
_INTEGERS: Final[frozenset[type]] = frozenset(
    {int, bool, *(dtype.type for dtype in map(np.dtype, DTYPES) if dtype.kind in "iu")}
)
_REALS: Final[frozenset[type]] = frozenset({float, np.float16, np.float32, np.float64}) | _INTEGERS | _BOOLEANS
_TYPES: Final[Mapping[str, frozenset[type]]] = {"b": _BOOLEANS, "i": _INTEGERS, "u": _INTEGERS, "f": _REALS}
"""Types that the fast path accepts, by kind of dtype. memoryview would accept any object with ``__float__``."""


class RowBlock:
    """A buffer for rows, filled in order."""

    def __init__(self, schema: Schema, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        """Number of rows in the block."""
        self.has_priorities = False
        """Whether the rows have priorities: either all of them do, or none."""
        self._schema = schema
        self._columns: dict[str, Array] = {
            name: np.empty((capacity, *column.shape), column.dtype.newbyteorder("=")) for name, column in schema.items()
        }
        self._priorities = np.empty(capacity, np.float64)
        self._scalars: list[tuple[str, memoryview[Any], frozenset[type]]] = []
        self._arrays: list[tuple[str, Array, np.dtype[Any], tuple[int, ...]]] = []
        for name, target in self._columns.items():
            if target.ndim > 1 or target.dtype.name in _SLOW_DTYPES:
                self._arrays.append((name, target, target.dtype, target.shape[1:]))
            else:
                self._scalars.append((name, target.data, _TYPES[target.dtype.kind]))

    def accepts(self, priority: float | None) -> bool:
        """Whether a row with this priority may be added: either all rows have priorities, or none. Ignores capacity."""
        return not self.count or self.has_priorities is (priority is not None)

    def add(self, values: Mapping[str, Any], priority: float | None) -> None:
        """Copy a row into the block, which must have room for it and accept its priority.

        Raises:
            InvalidArgumentError: the row does not match the schema. The block is unchanged.
        """
        row = self.count
        if priority is not None:
            self._priorities[row] = _checked_priority(priority)
        if len(values) != len(self._columns) or not self._add_fast(values, row):
            self._add_checked(values, row)
        self.has_priorities = priority is not None
        self.count = row + 1

    def columns(self) -> dict[str, Array]:
        """Return views of the block's rows, by column."""
        return {name: column[: self.count] for name, column in self._columns.items()}

    def take(self, head: replay_pb2.WriteRequest) -> bytes:
        """Serialize ``head`` and the block's rows as one message, and empty the block."""
        count = self.count
        head.insertion.row_count = count
        if self.has_priorities:
            head.insertion.priorities = self._priorities[:count].tobytes()
        message = packed_rows(head, self._schema, self.columns(), count)
        self.count = 0
        return message

    def _add_fast(self, values: Mapping[str, Any], row: int) -> bool:
        """Store a row; return False if a value needs a cast or is invalid."""
        try:
            for name, scalars, types in self._scalars:
                value = values[name]
                if type(value) not in types:
                    return False
                scalars[row] = value  # raises if out of range
            for name, arrays, dtype, shape in self._arrays:
                value = values[name]
                if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                    return False
                arrays[row] = value
        except (KeyError, TypeError, ValueError, OverflowError):
            return False
        return True

    def _add_checked(self, values: Mapping[str, Any], row: int) -> None:
        flat = flattened(self._schema, values)
        checked = {name: checked_value(name, column, flat[name]) for name, column in self._schema.items()}
        for name, value in checked.items():
            self._columns[name][row] = value


def _checked_priority(priority: Any) -> float:
    value = (
        priority if isinstance(priority, float | int) else checked_array("priority", _PRIORITY, priority).astype(float)
    )
    if np.ndim(value) == 0 and 0.0 <= value <= sys.float_info.max:
        return float(value)
    expected = "a finite number of at least 0, such as abs(td_error)"
    raise InvalidArgumentError.of_field("priority", expected, repr(priority))
