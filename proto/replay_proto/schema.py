"""The columns of a table: their names, dtypes and shapes, and how many bytes they take."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike

from replay_proto.errors import FieldError
from replay_proto.v1 import replay_pb2

DTYPES: Mapping[str, replay_pb2.DataType.ValueType] = {
    "bool": replay_pb2.DATA_TYPE_BOOL,
    "int8": replay_pb2.DATA_TYPE_INT8,
    "int16": replay_pb2.DATA_TYPE_INT16,
    "int32": replay_pb2.DATA_TYPE_INT32,
    "int64": replay_pb2.DATA_TYPE_INT64,
    "uint8": replay_pb2.DATA_TYPE_UINT8,
    "uint16": replay_pb2.DATA_TYPE_UINT16,
    "uint32": replay_pb2.DATA_TYPE_UINT32,
    "uint64": replay_pb2.DATA_TYPE_UINT64,
    "float16": replay_pb2.DATA_TYPE_FLOAT16,
    "float32": replay_pb2.DATA_TYPE_FLOAT32,
    "float64": replay_pb2.DATA_TYPE_FLOAT64,
}
"""The dtypes a column can have, by NumPy name."""

MAX_DIMENSIONS = 31
"""NumPy has arrays of 32, one of which counts the rows."""
_DTYPE_NAMES = {value: name for name, value in DTYPES.items()}
_COLUMN_NAME = re.compile(r"[A-Za-z0-9.\-/][A-Za-z0-9_.\-/]{0,127}")


@dataclass(frozen=True, init=False)
class Column:
    """One named field of every row: a dtype and a shape."""

    dtype: np.dtype[np.generic]
    """bool, int8 to int64, uint8 to uint64 or float16 to float64; little-endian."""
    shape: tuple[int, ...] = ()
    """Sizes of its dimensions, each at least 1; ``()`` for a scalar."""

    def __init__(self, dtype: DTypeLike, shape: Iterable[int] = ()) -> None:
        """Describe a column.

        Args:
            dtype: anything NumPy takes for one of the dtypes above, such as ``"float32"``.
            shape: sizes of the dimensions of one row's value.

        Raises:
            FieldError: for another dtype, or a dimension below 1.
        """
        object.__setattr__(self, "dtype", _checked_dtype(dtype))
        object.__setattr__(self, "shape", _checked_shape(shape))

    @property
    def row_bytes(self) -> int:
        """Bytes that one row's value takes."""
        return self.dtype.itemsize * math.prod(self.shape)

    def __str__(self) -> str:
        """``float32[4]``, or ``float32`` for a scalar."""
        return self.dtype.name + (f"[{','.join(map(str, self.shape))}]" if self.shape else "")


@dataclass(frozen=True)
class Schema(Mapping[str, Column]):
    """The columns of a table by name, in the order in which they travel and are stored."""

    columns: Mapping[str, Column] = field(hash=False)
    """At least one."""

    def __post_init__(self) -> None:
        """Check the names; `Column` has checked the rest.

        Raises:
            FieldError: for an empty schema or a name that is not allowed.
        """
        if not self.columns:
            raise FieldError("columns", "at least one column", "none")
        for name in self.columns:
            if not isinstance(name, str) or not _COLUMN_NAME.fullmatch(name):
                raise FieldError(
                    "columns",
                    "names of 1 to 128 letters, digits, '_', '-', '.', '/' that do not begin with '_'",
                    repr(name),
                )

    def __getitem__(self, name: str) -> Column:
        """The column of this name."""
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        """The names, in order."""
        return iter(self.columns)

    def __len__(self) -> int:
        """Number of columns."""
        return len(self.columns)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes that one row takes, all columns together."""
        return sum(column.row_bytes for column in self.columns.values())

    def to_proto(self) -> list[replay_pb2.Column]:
        """The columns as the contract has them."""
        return [
            replay_pb2.Column(
                name=name,
                stored=replay_pb2.StoredColumn(data_type=DTYPES[column.dtype.name], shape=column.shape),
            )
            for name, column in self.columns.items()
        ]

    @classmethod
    def from_proto(cls, columns: Iterable[replay_pb2.Column]) -> Schema:
        """Read columns from a message.

        Raises:
            FieldError: if one is not as the contract says.
        """
        parsed: dict[str, Column] = {}
        for column in columns:
            where = f"columns.{column.name}"
            if column.name in parsed:
                raise FieldError(where, "a name used once", "it again")
            if column.WhichOneof("source") != "stored":
                raise FieldError(f"{where}.source", "stored", "none that this version knows")
            dtype = _DTYPE_NAMES.get(column.stored.data_type)
            if dtype is None:
                raise FieldError(
                    f"{where}.data_type", f"one of {', '.join(DTYPES)}", f"number {column.stored.data_type}"
                )
            parsed[column.name] = _with_field(where, dtype, column.stored.shape)
        return cls(parsed)


def _with_field(where: str, dtype: str, shape: Iterable[int]) -> Column:
    try:
        return Column(dtype, shape)
    except FieldError as error:
        raise FieldError(f"{where}.{error.field}", error.expected, error.got) from None


def _checked_dtype(given: DTypeLike) -> np.dtype[np.generic]:
    try:
        if given is None:  # which NumPy takes for float64
            raise TypeError
        dtype = np.dtype(given)
    except TypeError:
        raise FieldError("dtype", f"one of {', '.join(DTYPES)}", repr(given)) from None
    if dtype.name not in DTYPES:
        raise FieldError("dtype", f"one of {', '.join(DTYPES)}", repr(given))
    return dtype.newbyteorder("<")


def _checked_shape(given: Iterable[int]) -> tuple[int, ...]:
    shape = tuple(int(size) for size in given)
    if len(shape) > MAX_DIMENSIONS:
        raise FieldError("shape", f"at most {MAX_DIMENSIONS} dimensions", f"{len(shape)}")
    if any(size < 1 for size in shape):
        raise FieldError("shape", "dimensions of at least 1", str(shape))
    return shape
