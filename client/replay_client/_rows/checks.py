"""Checks callers' rows against a table's schema and packs them for the wire.

    columns, row_count = checked_rows(schema, {"obs": obs, "action": [1, 0]})
    message = packed_rows(replay_pb2.InsertRequest(...), schema, columns, row_count)

A value may be a number, or a list, an array or a tensor of numbers, on any device, with or without gradients. What
counts is the values, not their container or dtype:

- An integer column accepts integers in its range: 255 fits into uint8, 256 and 1.0 do not.
- A floating-point column accepts all numbers, rounded to its precision. Infinities and NaN are values like others, but
  a finite number that would become infinite, such as 70000 in float16, is refused.
- A bool column accepts 0 and 1.

Values are never broadcast, and every column must be given. Nested observations are mappings or tuples:
``{"obs": {"camera": ...}}`` is the column ``obs/camera``.

An optional column may be missing or None, and so may a nested observation whose columns are all optional. The mask of
an optional column may be given, too. Where the mask is False, zeros replace the values. A mask that is not given is
True if its column was given, and False otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import numpy as np
from google.protobuf.message import Message
from numpy.typing import ArrayLike, NDArray
from replay_proto.framing import Array, column_views, joined_message, message_with_rows
from replay_proto.layout import INSERT_BYTES
from replay_proto.schema import SEPARATOR, Column, Schema
from replay_proto.v1 import replay_pb2

from replay_client._rows.columns import BatchOrKeys, Columns, MixedRows
from replay_client._rows.positions import NO_ROW
from replay_client.errors import InvalidArgumentError

_PRIORITY: Final = Column("float64")
_KEY: Final = Column("int64")
_FLAG: Final = Column("bool")
_LARGEST: Final = {
    **{name: float(np.finfo(name).max) for name in ("float16", "float32", "float64")},
    "bfloat16": float.fromhex("0x1.fep127"),
}
"""Largest number of a floating-point dtype."""
_KINDS: Final[Mapping[str, str]] = {"i": "iub", "u": "iub", "f": "fiub", "V": "fiub"}
"""Kinds of dtypes whose values a column may hold, by kind of its own dtype; bool columns are checked otherwise. The
kind of bfloat16 is V."""


def checked_rows(schema: Schema, given: Mapping[str, Any], *, is_partial: bool = False) -> tuple[dict[str, Array], int]:
    """Check rows given as columns, ``[n, *shape]``, at least one row; observations may be nested.

    If ``is_partial``, columns may be missing. Return arrays in the order of the schema, which can be cast to the
    columns' dtypes, and the number of rows.
    """
    flat = flattened(schema, given, is_partial=is_partial)
    columns: dict[str, Array] = {}
    row_count: int | None = None
    for name, column in schema.columns.items():  # the dict itself: actors call this at every step
        if name not in flat:
            continue
        array = checked_array(f"columns.{name}", column, flat[name])
        if row_count is None and array.ndim:
            row_count = len(array)
        if array.shape != (row_count, *column.shape):
            expected = ",".join(str(size) for size in ("n" if row_count is None else row_count, *column.shape))
            raise InvalidArgumentError.of_field(f"columns.{name}", f"{column.dtype}[{expected}]", described(array))
        columns[name] = array
    if not row_count:
        raise InvalidArgumentError.of_field("row_count", "at least 1", "0")
    if not schema.masks:
        return columns, row_count
    return _with_masks(schema, columns, (row_count,), is_partial=is_partial), row_count


def checked_row(schema: Schema, given: Mapping[str, Any], *, is_partial: bool = False) -> dict[str, Array]:
    """Check one row; see `checked_rows`. Return values by column, ``[*shape]``, which can be cast to their dtypes."""
    flat = flattened(schema, given, is_partial=is_partial)
    row = {name: checked_value(name, schema[name], value) for name, value in flat.items()}
    return _with_masks(schema, row, (), is_partial=is_partial) if schema.masks else row


def checked_value(name: str, column: Column, value: Any) -> Array:
    """Check one row's value in one column; return it as an array ``[*shape]`` that can be cast to its dtype."""
    array = checked_array(f"columns.{name}", column, value)
    if array.shape != column.shape:
        raise InvalidArgumentError.of_field(f"columns.{name}", str(column), described(array))
    return array


def checked_array(field: str, column: Column, value: Any) -> Array:
    """Convert a value to an array and check that its elements fit a column; ignores the shape.

    Raises:
        InvalidArgumentError: for a dtype of another kind, a number out of range, or values other than 0 and 1 for a
            bool column.
    """
    if isinstance(value, np.ndarray) and value.dtype == column.dtype:
        return value
    try:
        array = as_array(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidArgumentError.of_field(field, str(column), f"{type(value).__name__}: {error}") from None
    if array.dtype == column.dtype or not array.size:
        return array
    kind = column.dtype.kind
    if kind == "b":
        return _as_booleans(field, column, array)
    if array.dtype.kind == "f" and kind == "u" and not isinstance(value, np.ndarray):
        array = _large_integers(value, array)
    if array.dtype.kind not in _KINDS[kind]:
        raise InvalidArgumentError.of_field(field, str(column), described(array))
    return _of_floats(field, column, array) if kind in "fV" else _of_integers(field, column, array)


def as_array(value: Any) -> Array:
    """Convert a number, an array, a tensor of any library, or a list of these to an array; copy only if necessary.

    Raises:
        ValueError: nested lists have different lengths.
        TypeError, RuntimeError: a tensor cannot be read.
    """
    if not isinstance(value, np.ndarray) and hasattr(value, "detach"):
        return _of_torch(value)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError):
        if not isinstance(value, list | tuple):
            raise
        array = np.asarray([as_array(part) for part in value])  # may contain tensors, which are converted one by one
    if array.dtype.kind == "V" and np.can_cast(array.dtype, np.float32):  # JAX's bfloat16 and smaller floats
        return array.astype(np.float32)
    return array


def flattened(schema: Schema, given: Mapping[str, Any], *, is_partial: bool = False) -> dict[str, Any]:
    """Flatten nested values to columns.

    Raises:
        InvalidArgumentError: a column is unknown; a required column is missing, unless ``is_partial``; or
            ``given`` is not a mapping.
    """
    if not hasattr(given, "items"):
        raise InvalidArgumentError.of_field("columns", "a mapping of names to arrays", type(given).__name__)
    flat: dict[str, Any] = {}
    for name, value in given.items():
        _flatten_into(flat, schema, name, value)
    missing = [] if is_partial else [name for name in schema.columns if name not in flat]
    if schema.masks:
        optional = {*schema.masks, *schema.masks.values()}
        flat = {name: value for name, value in flat.items() if value is not None or name not in optional}
        missing = [name for name in missing if name not in optional]
    if missing or not flat.keys() <= schema.columns.keys():
        unknown = [str(name) for name in flat if name not in schema]
        got = "; ".join(
            f"{what}: {', '.join(names)}" for what, names in (("missing", missing), ("unknown", unknown)) if names
        )
        raise InvalidArgumentError.of_field("columns", ", ".join(schema), got)
    return flat


def merged(row: Mapping[str, Any] | None, columns: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return values that a caller gives in a mapping, as keyword arguments, or both."""
    if row is None:
        return columns
    if not columns and type(row) is dict:  # the usual case, which actors repeat at every step, needs no copy
        return row
    try:
        return {**row, **columns}
    except TypeError:
        expected = "a mapping of names to values"
        raise InvalidArgumentError.of_field("columns", expected, type(row).__name__) from None


def nested_items(name: str, value: Mapping[Any, Any] | tuple[Any, ...]) -> list[tuple[str, Any]]:
    """Return the parts of a nested value with their names: ``obs/camera`` in a mapping, ``obs/0`` in a tuple."""
    parts = value.items() if isinstance(value, Mapping) else enumerate(value)
    return [(f"{name}{SEPARATOR}{key}", part) for key, part in parts]


def flat_items(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return the values in a nested value with their names, or the value itself if it is not a mapping or a tuple."""
    if not isinstance(value, Mapping | tuple):
        return [(name, value)]
    return [item for part_name, part in nested_items(name, value) for item in flat_items(part_name, part)]


def checked_priorities(priorities: ArrayLike, row_count: int) -> NDArray[np.float64]:
    """Check that priorities are finite and at least 0, and return them as a contiguous ``float64[row_count]``."""
    array = checked_array("priorities", _PRIORITY, priorities)
    if array.shape != (row_count,):
        raise InvalidArgumentError.of_field("priorities", f"float64[{row_count}]", described(array))
    checked = np.ascontiguousarray(array, dtype="<f8")
    if row_count and not (checked.min() >= 0.0 and checked.max() < np.inf):
        bad = checked[~(np.isfinite(checked) & (checked >= 0.0))]
        expected = "finite numbers of at least 0, such as abs(td_errors)"
        raise InvalidArgumentError.of_field("priorities", expected, repr(float(bad[0])))
    return checked


def checked_flags(field: str, given: ArrayLike, shape: tuple[int, ...] = (), *, meaning: str = "") -> Array:
    """Convert flags to a bool array, and check its shape.

    Raises:
        InvalidArgumentError: a value is neither a bool nor 0 or 1, or the shape is wrong. In the message about a
            wrong shape, ``meaning`` follows the expected shape.
    """
    flags = checked_array(field, _FLAG, given)
    if flags.shape != shape:
        sizes = f"[{','.join(map(str, shape))}]" if shape else ""
        raise InvalidArgumentError.of_field(field, f"bool{sizes}{meaning}", described(flags))
    return flags


def checked_keys(batch_or_keys: BatchOrKeys, *, field: str = "keys") -> NDArray[np.int64]:
    """Convert keys, or the keys of a batch, to a contiguous ``int64[n]``."""
    if isinstance(batch_or_keys, Columns):
        if isinstance(batch_or_keys, MixedRows):
            expected = "a batch of one table, such as batch.parts['demo'], or int64[n]"
            raise InvalidArgumentError.of_field(field, expected, type(batch_or_keys).__name__)
        given: ArrayLike = batch_or_keys.row_keys
    elif isinstance(batch_or_keys, Mapping):
        raise InvalidArgumentError.of_field(field, "a batch, or int64[n]", type(batch_or_keys).__name__)
    else:
        given = batch_or_keys
    array = checked_array(field, _KEY, given)
    if array.ndim != 1:
        raise InvalidArgumentError.of_field(field, "a batch, or int64[n]", described(array))
    return np.ascontiguousarray(array, dtype="<i8")


def checked_update(
    schema: Schema, keys: ArrayLike, given: Mapping[str, Any]
) -> tuple[NDArray[np.int64], dict[str, Array]]:
    """Check new values of mutable columns, ``[*keys.shape, *shape]``; observations may be nested.

    The keys are int64 of any shape, such as `Batch.position_keys`; -1 for a position without a row. Return the keys of
    positions with a row, int64[n], and their values in the order of the schema, ``[n, *shape]``.
    """
    found = checked_array("keys", _KEY, keys)
    places = np.flatnonzero(found != NO_ROW)
    flat = {name: value for name, value in flattened(schema, given, is_partial=True).items() if value is not None}
    columns: dict[str, Array] = {}
    for name, value in flat.items():
        column = schema[name]
        if not column.mutable:
            allowed = ", ".join(schema.mutable) or "none in this table"
            raise InvalidArgumentError.of_field(f"columns.{name}", f"a mutable column ({allowed})", f"{name}, {column}")
        array = checked_array(f"columns.{name}", column, value)
        if array.shape != found.shape + column.shape:
            expected = f"{column.dtype}[{','.join(map(str, found.shape + column.shape))}], like the keys"
            raise InvalidArgumentError.of_field(f"columns.{name}", expected, described(array))
        columns[name] = array.reshape(-1, *column.shape)[places]
    if not columns:
        raise InvalidArgumentError.of_field("columns", "at least one column", "none")
    columns = _with_masks(schema, columns, (len(places),), is_partial=True)
    return np.ascontiguousarray(found.reshape(-1)[places], dtype="<i8"), {
        name: columns[name] for name in schema if name in columns
    }


def packed_rows(head: Message, schema: Schema, columns: Mapping[str, Array], row_count: int) -> bytes:
    """Serialize ``head`` and the rows from `checked_rows` as one message, copying the rows only once."""

    def write(rows: Array) -> None:
        for name, view in column_views(schema, rows, row_count).items():
            np.copyto(view, columns[name], casting="unsafe")  # the kinds were checked

    return message_with_rows(head, schema.row_bytes * row_count, write)


def packed_update(head: Message, schema: Schema, columns: Mapping[str, Array]) -> bytes:
    """Serialize ``head`` and the values from `checked_update` as one message."""
    values = [np.ascontiguousarray(array, schema[name].dtype) for name, array in columns.items()]
    return joined_message(head, [array.reshape(-1).view(np.uint8).data for array in values])


def update_parts(
    schema: Schema, keys: NDArray[np.int64], columns: Mapping[str, Array], keys_per_call: int
) -> Iterator[tuple[replay_pb2.RowUpdate, dict[str, Array]]]:
    """Split an update from `checked_update` into requests of limited size: the message of each, and its values."""
    row_bytes = sum(schema[name].row_bytes for name in columns)
    most = max(1, min(INSERT_BYTES // row_bytes, keys_per_call))
    names = replay_pb2.ColumnNames(names=columns)
    for start in range(0, len(keys), most):
        part = slice(start, start + most)
        yield (
            replay_pb2.RowUpdate(keys=keys[part].tobytes(), columns=names),
            {name: values[part] for name, values in columns.items()},
        )


def described(array: Array) -> str:
    """Describe an array by dtype and shape, such as ``float64[32,4]``, and a scalar by dtype and value."""
    if not array.ndim:
        return f"{array.dtype.name} {array.item()!r}"
    return f"{array.dtype.name}[{','.join(map(str, array.shape))}]"


def _with_masks(
    schema: Schema, columns: Mapping[str, Array], rows: tuple[int, ...], *, is_partial: bool
) -> dict[str, Array]:
    """Add missing optional columns and masks, and set values to zero where a mask is False.

    ``columns`` are checked values ``[*rows, *shape]``; ``rows`` is ``(n,)`` for n rows, and ``()`` for one. If
    ``is_partial``, missing columns stay missing. A column must not be missing if its mask is True anywhere.
    """
    complete = dict(columns)
    for name, mask in schema.masks.items():
        column, values, given = schema[name], columns.get(name), columns.get(mask)
        if is_partial and values is None and given is None:
            continue
        is_present = np.broadcast_to(np.bool_(values is not None), rows) if given is None else given
        if values is None:
            if is_present.any():
                expected = f"{column.dtype.name} of shape {(*rows, *column.shape)}, because {mask} is True"
                raise InvalidArgumentError.of_field(f"columns.{name}", expected, "none")
            values = np.broadcast_to(column.dtype.type(0), (*rows, *column.shape))
        elif not is_present.all():
            of_row = is_present.reshape((*rows, *(1 for _ in column.shape)))
            values = np.where(of_row, values, values.dtype.type(0))
        complete[name], complete[mask] = values, is_present
    return {name: complete[name] for name in schema if name in complete}


def _flatten_into(flat: dict[str, Any], schema: Schema, name: str, value: Any) -> None:
    if name not in schema and isinstance(value, Mapping | tuple):
        for part_name, part in nested_items(name, value):
            _flatten_into(flat, schema, part_name, part)
    elif value is None and name not in schema and any(each.startswith(f"{name}{SEPARATOR}") for each in schema.columns):
        pass  # a nested value that is left out
    elif name in flat:
        raise InvalidArgumentError.of_field(f"columns.{name}", "a column given once", "it again")
    else:
        flat[name] = value


def _of_torch(tensor: Any) -> Array:
    """Convert a torch tensor, without importing torch."""
    tensor = tensor.detach()
    try:
        return np.asarray(tensor.numpy(force=True))
    except TypeError:  # NumPy has no such dtype: bfloat16 and smaller floats
        return np.asarray(tensor.float().numpy(force=True))


def _as_booleans(field: str, column: Column, array: Array) -> Array:
    """Convert zeros and ones to bool: environments and other buffers often store ``done`` as a float."""
    if np.can_cast(array.dtype, np.float64, "same_kind"):
        is_one = np.asarray(array == 1)
        if np.all(is_one | (array == 0)):
            return is_one
    raise InvalidArgumentError.of_field(field, f"{column}, or 0 and 1", described(array))


def _large_integers(value: Any, floats: Array) -> Array:
    """Convert integers such as ``[2**63, 0]``, which NumPy turns into floats, to uint64; return other floats as is."""
    elements = np.asarray(value, dtype=object)
    if not all(isinstance(element, int | np.integer) for element in elements.flat):
        return floats
    try:
        return elements.astype(np.uint64)
    except OverflowError:  # an element is negative, or too large for uint64
        return floats


def _of_integers(field: str, column: Column, array: Array) -> Array:
    """Refuse integers out of the column's range: a cast would wrap them silently."""
    if np.can_cast(array.dtype, column.dtype, "safe"):
        return array
    bounds = np.iinfo(column.dtype.name)
    smallest, largest = int(array.min()), int(array.max())
    if smallest < bounds.min or largest > bounds.max:
        worst = smallest if smallest < bounds.min else largest
        raise _out_of_range(field, column, bounds.min, bounds.max, worst, array)
    return array


def _of_floats(field: str, column: Column, array: Array) -> Array:
    """Refuse finite numbers that a cast to the column's precision would make infinite."""
    largest = _largest(column.dtype)
    if -largest <= array.item(array.argmin()) and array.item(array.argmax()) <= largest:  # not if there is a NaN
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        cast: Array = array.astype(column.dtype)
    if not (np.isinf(cast) & np.isfinite(array)).any():
        return cast
    finite = array[np.isfinite(array)]
    worst = finite[np.abs(finite).argmax()]
    raise _out_of_range(field, column, f"{-largest:g}", f"{largest:g}", worst, array)


@cache
def _largest(dtype: np.dtype[Any]) -> float:
    """Return the largest number of a dtype. It is cached, because NumPy composes the name of a dtype each time."""
    return _LARGEST[dtype.name]


def _out_of_range(
    field: str, column: Column, smallest: object, largest: object, worst: object, array: Array
) -> InvalidArgumentError:
    expected = f"{column.dtype.name}, {smallest} to {largest}"
    return InvalidArgumentError.of_field(field, expected, f"{worst} in {described(array)}")
