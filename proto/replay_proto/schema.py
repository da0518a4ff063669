"""The stored columns of a table: names, dtypes, shapes and sizes in bytes.

Rows may leave out an optional column. For each optional column, a schema has a bool column, its mask: `goal_present`
says which rows have a `goal`. Rows without a value have zeros.
"""

from __future__ import annotations

import importlib
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, SupportsIndex, get_args

import numpy as np

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
    "bfloat16": replay_pb2.DATA_TYPE_BFLOAT16,
}
"""The dtypes a column can have, by NumPy name. NumPy knows bfloat16 only if the package ml_dtypes is imported."""

SEPARATOR = "/"
"""Joins the parts of a nested observation in the name of a column: ``obs/camera``."""
PRESENT = "_present"
"""Suffix that forms the name of an optional column's mask."""
MAX_DIMENSIONS = 31
"""Maximum dimensions of a column: NumPy arrays have at most 32, and one is for the rows."""
MAX_VALUE_BYTES = 2**31 - 1
"""Maximum bytes of a value: protobuf messages cannot be larger."""
At = Literal["step", "start"]
"""Whether a drawn sequence has a column's value for each of its steps, or only for its first row."""
_DTYPE_NAMES = {value: name for name, value in DTYPES.items()}
_COLUMN_NAME = re.compile(r"[A-Za-z0-9.\-/][A-Za-z0-9_.\-/]{0,127}")


@dataclass(frozen=True, init=False)
class Column:
    """One named field of every row: a dtype and a shape."""

    dtype: np.dtype[np.generic]
    """bool, int8 to int64, uint8 to uint64, float16 to float64, or bfloat16; little-endian."""
    shape: tuple[int, ...] = ()
    """Sizes of its dimensions, each at least 1; ``()`` for a scalar."""
    sampled: bool = True
    """Whether batches contain it."""
    at: At = "step"
    """``"step"``: a drawn sequence has a value for each of its steps; ``"start"``: only for its first row."""
    optional: bool = False
    """Whether rows may leave it out."""
    mutable: bool = False
    """Whether its values may be written again after the insert."""

    def __init__(
        self,
        dtype: object,
        shape: SupportsIndex | Iterable[SupportsIndex] = (),
        *,
        sampled: bool = True,
        at: At = "step",
        optional: bool = False,
        mutable: bool = False,
    ) -> None:
        """Describe a column.

        Args:
            dtype: one of `DTYPES`, in any form that NumPy accepts: ``"float32"``, ``np.float32``, ``float``
                (float64); or torch's: ``torch.float32``. Byte order does not matter: rows are sent little-endian.
                ``"bfloat16"`` needs the package ml_dtypes, whose arrays NumPy handles like its own.
            shape: sizes of the dimensions of one row's value; ``4`` is short for ``(4,)``.
            sampled: whether batches contain the column. It can be False only in a table of steps, where other columns
                may be derived from it.
            at: with ``"start"``, a drawn sequence has only the value of its first row, such as the state of a recurrent
                network. Only for tables of sequences.
            optional: whether rows may leave the column out. The table then also has a bool column with the same name
                and the suffix `PRESENT`, which says which rows have a value. Rows without a value have zeros.
            mutable: whether `Table.update` may write new values into rows that exist. Takes twice the space.

        Raises:
            InvalidArgumentError: for another dtype, a dimension that is not a whole number of at least 1, more than
                `MAX_DIMENSIONS` of them, or a value of more than `MAX_VALUE_BYTES`.
        """
        object.__setattr__(self, "dtype", _checked_dtype(dtype))
        object.__setattr__(self, "shape", _checked_shape(shape))
        object.__setattr__(self, "sampled", bool(sampled))
        object.__setattr__(self, "at", at)
        object.__setattr__(self, "optional", bool(optional))
        object.__setattr__(self, "mutable", bool(mutable))
        if at not in get_args(At):
            raise FieldError("at", "'step' or 'start'", repr(at))
        if self.row_bytes > MAX_VALUE_BYTES:
            raise FieldError(
                "shape", f"a value of at most {MAX_VALUE_BYTES:,} bytes", f"{self}, {self.row_bytes:,} bytes"
            )

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row's value."""
        return self.dtype.itemsize * math.prod(self.shape)

    def __str__(self) -> str:
        """``float32[4]``, or ``float32`` for a scalar."""
        text = self.dtype.name + (f"[{','.join(map(str, self.shape))}]" if self.shape else "")
        text += "" if self.sampled else ", not sampled"
        text += "" if self.at == "step" else f", at {self.at}"
        text += ", optional" if self.optional else ""
        return text + (", mutable" if self.mutable else "")

    @property
    def mask(self) -> Column:
        """The mask of this column, if it is optional."""
        return Column("bool", sampled=self.sampled, at=self.at, mutable=self.mutable)


@dataclass(frozen=True)
class Schema(Mapping[str, Column]):
    """The columns of a table by name, in the order in which they are sent and stored."""

    columns: Mapping[str, Column] = field(hash=False)
    """The columns by name; at least one. The mask of an optional column follows it, unless the mask was given, too."""

    def __post_init__(self) -> None:
        """Check the names, and add masks; `Column` has already checked dtypes and shapes.

        Raises:
            InvalidArgumentError: for an empty schema, an invalid name, a value that is not a `Column`, a column
                together with columns nested under its name (``obs`` and ``obs/camera``), or another column with the
                name of a mask.
        """
        if not self.columns:
            raise FieldError("columns", "at least one column", "none")
        object.__setattr__(self, "columns", _with_masks(self.columns))
        for name in self.columns:
            if not isinstance(name, str) or not _COLUMN_NAME.fullmatch(name):
                raise FieldError(
                    "columns",
                    "names of 1 to 128 letters, digits, '_', '-', '.', '/' that do not begin with '_'",
                    repr(name),
                )
        for name, column in self.columns.items():
            if not isinstance(column, Column):
                raise FieldError(f"columns.{name}", 'a Column, such as Column("float32", 4)', repr(column))
            outer = next((part for part in _outer_names(name) if part in self.columns), None)
            if outer is not None:
                raise FieldError("columns", "a column, or columns nested under its name", f"both {outer} and {name}")

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row, all columns together."""
        return sum(column.row_bytes for column in self.columns.values())

    @cached_property
    def mutable(self) -> Mapping[str, Column]:
        """The mutable columns by name."""
        return {name: column for name, column in self.columns.items() if column.mutable}

    @cached_property
    def masks(self) -> Mapping[str, str]:
        """The name of each optional column's mask, by the name of the column."""
        return {name: name + PRESENT for name, column in self.columns.items() if column.optional}

    def to_proto(self, *, of_steps: bool = False) -> list[replay_pb2.Column]:
        """Convert to protobuf messages; ``of_steps`` for a table of steps."""
        columns = {name: _to_proto(name, column, of_steps=of_steps) for name, column in self.columns.items()}
        for name, mask in self.masks.items():
            columns[mask] = replay_pb2.Column(name=mask, presence=replay_pb2.Presence(of=name))
        return list(columns.values())

    @classmethod
    def from_proto(cls, columns: Iterable[replay_pb2.Column], *, of_steps: bool = False) -> Schema:
        """Read and check stored columns from messages; ``of_steps`` for a table of steps."""
        source = "step" if of_steps else "stored"
        sent: dict[str, replay_pb2.Column] = {}
        for column in columns:
            if column.name in sent:
                raise FieldError(f"columns.{column.name}", "a name used once", "it again")
            sent[column.name] = column
        optional = {column.presence.of for column in sent.values() if column.HasField("presence")}
        parsed: dict[str, Column] = {}
        for name, column in sent.items():
            if column.HasField("presence"):
                _check_mask(column, sent, source)
                column = sent[column.presence.of]
            elif column.WhichOneof("source") != source:
                expected, got = source, column.WhichOneof("source") or "a type unknown to this version"
                raise FieldError(f"columns.{name}.source", expected, got)
            values = _from_proto(f"columns.{column.name}", column, optional=column.name in optional)
            parsed[name] = values if name == column.name else values.mask
        return cls(parsed)


def _to_proto(name: str, column: Column, *, of_steps: bool) -> replay_pb2.Column:
    stored = replay_pb2.StoredColumn(data_type=DTYPES[column.dtype.name], shape=column.shape, mutable=column.mutable)
    if not of_steps:
        return replay_pb2.Column(name=name, stored=stored)
    step = replay_pb2.StepColumn(values=stored, unsampled=not column.sampled, at_start=column.at == "start")
    return replay_pb2.Column(name=name, step=step)


def _check_mask(mask: replay_pb2.Column, columns: Mapping[str, replay_pb2.Column], source: str) -> None:
    of = mask.presence.of
    if of not in columns or columns[of].WhichOneof("source") != source:
        raise FieldError(f"columns.{mask.name}.presence.of", f"the name of a {source} column", repr(of))
    if mask.name != of + PRESENT:
        raise FieldError(f"columns.{mask.name}.name", of + PRESENT, mask.name)


def _from_proto(where: str, column: replay_pb2.Column, *, optional: bool) -> Column:
    stored = column.step.values if column.HasField("step") else column.stored
    dtype = _DTYPE_NAMES.get(stored.data_type)
    if dtype is None:
        raise FieldError(f"{where}.data_type", f"one of {', '.join(DTYPES)}", f"number {stored.data_type}")
    if len(stored.shape) > MAX_DIMENSIONS:  # before iterating over them
        raise _too_many_dimensions(f"{where}.shape", len(stored.shape))
    try:
        return Column(
            dtype,
            stored.shape,
            sampled=not column.step.unsampled,
            at="start" if column.step.at_start else "step",
            optional=optional,
            mutable=stored.mutable,
        )
    except FieldError as error:
        raise FieldError(f"{where}.{error.field}", error.expected, error.got) from None


def _with_masks(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Add the masks of optional columns that are missing; refuse another column with the name of a mask."""
    complete: dict[str, Column] = {}
    for name, column in columns.items():
        complete[name] = column
        if not isinstance(column, Column) or not column.optional:
            continue
        mask = name + PRESENT
        if mask not in columns:
            complete[mask] = column.mask
        elif columns[mask] != column.mask:
            expected = f"{column.mask}, which says which rows have {name!r}; choose another name"
            raise FieldError(f"columns.{mask}", expected, str(columns[mask]))
    return complete


def _outer_names(name: str) -> Iterator[str]:
    """Yield the names that contain this nested name: ``a`` and ``a/b`` for ``a/b/c``."""
    return (name[: place.start()] for place in re.finditer(SEPARATOR, name))


def _checked_dtype(given: Any) -> np.dtype[np.generic]:
    is_torch = type(given).__module__ == "torch"  # which is not imported here
    understood = str(given).removeprefix("torch.") if is_torch else given
    if isinstance(understood, str) and understood == "bfloat16":
        try:
            bfloat16: np.dtype[np.generic] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
        except ImportError:
            expected = "another one, or the package ml_dtypes: pip install 'replay-service[bfloat16]'"
            raise FieldError("dtype", expected, repr(given)) from None
        return bfloat16
    try:
        name = "none" if given is None else np.dtype(understood).name  # NumPy would interpret None as float64
    except (TypeError, ValueError, SyntaxError):  # NumPy raises any of these
        name = "none"
    if name not in DTYPES:
        raise FieldError("dtype", f"one of {', '.join(DTYPES)}", repr(given))
    return np.dtype(name).newbyteorder("<")


def _checked_shape(given: SupportsIndex | Iterable[SupportsIndex]) -> tuple[int, ...]:
    try:
        sizes = tuple(given)  # type: ignore[arg-type]
    except TypeError:
        sizes = (given,)  # type: ignore[assignment]
    if len(sizes) > MAX_DIMENSIONS:
        raise _too_many_dimensions("shape", len(sizes))
    if not all(_is_size(size) for size in sizes):
        raise FieldError("shape", "a whole number of at least 1, or several", repr(given))
    return tuple(operator.index(size) for size in sizes)


def _too_many_dimensions(where: str, got: int) -> FieldError:
    return FieldError(where, f"at most {MAX_DIMENSIONS} dimensions", f"{got}")


def _is_size(value: object) -> bool:
    """Whether the value is a whole number of at least 1 and not a boolean."""
    try:
        return not isinstance(value, bool | np.bool_) and operator.index(value) >= 1  # type: ignore[arg-type]
    except TypeError:
        return False
