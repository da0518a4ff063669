"""Rows as Arrow tables and Parquet files.

    data = table.to_arrow()                             # a pyarrow.Table
    table.to_parquet("cartpole.parquet")
    table.load_parquet("cartpole.parquet")              # into a table with the same columns
    client.load_parquet("cartpole.parquet", "copy")     # into a new table with the config of the original one

Each column of the table is a column of the file. Its type is a number, a ``FixedSizeList`` for vectors, or a
``fixed_shape_tensor`` for arrays with more dimensions. Values are not converted. Optional columns are null in rows
without a value, so their masks are left out. Vectors and arrays of optional columns are plain lists. Further columns
have names that begin with an underscore, which no column of a table can have:

| column | type | value |
|---|---|---|
| ``_key`` | int64 | key of the row |
| ``_priority`` | double | priority; null for rows that cannot be drawn |
| ``_stream``, ``_episode`` | uint64 | stream of experience, and the episode within it |
| ``_step`` | int64 | number of the step within its episode; only in tables of steps |
| ``_terminated``, ``_truncated`` | bool | whether the row closes its episode, and how; only in tables of steps |

The metadata of the file contains the table's config as JSON (`TableConfig` of the protocol), under ``replay.table``.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf import json_format
from numpy.typing import NDArray
from replay_proto.framing import Array
from replay_proto.schema import PRESENT, Column, Schema
from replay_proto.v1 import replay_pb2

from replay_client._writing.links import StepOrder
from replay_client.batch import Rows
from replay_client.errors import InternalServerError, InvalidArgumentError
from replay_client.results.copies import Exported, Loaded
from replay_client.results.description import TableDescription
from replay_client.sync.progress import progress_bar
from replay_client.sync.row_loader import RowLoader, check_loadable
from replay_client.sync.row_reader import RowReader

CONFIG_KEY: Final = b"replay.table"
"""Key of the table's config in the metadata of a schema."""
GROUP_BYTES: Final = 8 << 20
"""Maximum bytes of rows read or written at a time, unless one row is larger. Memory holds several copies of them."""
GROUP_ROWS: Final = 1 << 16
"""Maximum rows of a row group in a file."""
LOADED_ROWS: Final = 1 << 13
"""Maximum rows that an import reads at a time: the maximum rows of an insert."""
COMPRESSION: Final = "zstd"

_KEY: Final = "_key"
_PRIORITY: Final = "_priority"
_LINKS: Final = ("_stream", "_episode")
_STEP: Final = "_step"
_ENDS: Final = ("_truncated", "_terminated")  # as in `EpisodeEnd`, from 1
_STEP_COLUMNS: Final = (*_LINKS, _STEP, *_ENDS)


def rows_at_once(table: TableDescription, most: int = GROUP_ROWS) -> int:
    """Return the number of rows that an export or import holds in memory, at most ``most``."""
    return max(1, min(most, GROUP_BYTES // table.schema.row_bytes))


def schema_of(table: TableDescription, names: Collection[str] | None = None) -> pa.Schema:
    """Return the schema of a table's rows, with these stored columns and their masks.

    If ``names`` is None, it has all columns, and the table's config in the metadata.
    """
    of_steps, masks = table.steps is not None, table.schema.masks
    chosen = table.schema if names is None else {name: table.schema[name] for name in names}
    implied = {masks[name] for name in chosen if name in masks}
    fields = [
        pa.field(name, _type_of(column), nullable=column.optional)
        for name, column in chosen.items()
        if name not in implied
    ]
    lack = table.may_lack_priorities
    fields += [pa.field(_KEY, pa.int64(), nullable=False), pa.field(_PRIORITY, pa.float64(), nullable=lack)]
    fields += [pa.field(name, pa.uint64(), nullable=False) for name in _LINKS]
    if of_steps:
        fields.append(pa.field(_STEP, pa.int64(), nullable=False))
        fields += [pa.field(name, pa.bool_(), nullable=False) for name in _ENDS]
    config = {CONFIG_KEY: json_format.MessageToJson(table.to_config(), indent=None)}
    return pa.schema(fields, config if names is None else None)


def batch_of(rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    """Convert rows to a record batch, without copying numbers."""
    arrays = []
    for field in (field for field in schema if field.name in rows.columns):
        is_present = rows.columns[field.name + PRESENT] if field.nullable else None
        arrays.append(_array_of(rows.columns[field.name], field.type, is_present))
    arrays += [_flat_array(rows.row_keys), _flat_array(rows.priorities, is_valid=~np.isnan(rows.priorities))]
    arrays += [_flat_array(rows.streams), _flat_array(rows.episodes)]
    if rows.steps is not None and rows.ends is not None:
        arrays.append(_flat_array(rows.steps))
        arrays += [_flat_array(rows.ends == end) for end, _ in enumerate(_ENDS, 1)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def table_of(reader: RowReader, schema: pa.Schema) -> pa.Table:
    """Read all rows into an Arrow table. ``schema`` is the result of `schema_of` for the columns that are read."""
    return pa.Table.from_batches([batch_of(rows, schema) for rows in reader], schema)


def write_parquet(reader: RowReader, schema: pa.Schema, path: str | os.PathLike[str]) -> Exported:
    """Write all rows to a file, which appears only once it is complete; see `table_of`.

    Raises:
        OSError: the file cannot be written.
        ReplayError: rows cannot be read.
    """
    written = 0
    with (
        _replacing(Path(path)) as part,
        pq.ParquetWriter(
            part, schema, compression=COMPRESSION, use_dictionary=_repetitive(schema), write_page_checksum=True
        ) as writer,
    ):
        for rows in reader:
            writer.write_batch(batch_of(rows, schema))
            written += rows.batch_size
    return Exported(written, reader.inserted, reader.overtaken)


class ParquetRows:
    """The rows of a Parquet file, read a few thousand at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a file.

        Raises:
            FileNotFoundError: there is no such file.
            InvalidArgumentError: it is not a Parquet file, or is damaged.
        """
        self._path = os.fspath(path)
        with _readable(self._path):
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            self._schema: pa.Schema = self._file.schema_arrow

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return int(self._file.metadata.num_rows)

    def table(self) -> TableDescription:
        """Return the description of the exported table, without rows.

        Raises:
            InvalidArgumentError: the file was not exported from a table, or was exported by a newer version.
        """
        stored = (self._schema.metadata or {}).get(CONFIG_KEY)
        if stored is None:
            expected = "a file exported with all columns of a table, or an existing table to load it into"
            raise InvalidArgumentError.of_field("path", expected, f"{self._path!r}, without a table's config")
        try:
            config = json_format.Parse(stored, replay_pb2.TableConfig())
            return TableDescription.from_proto(replay_pb2.TableDescription(config=config))
        except (json_format.ParseError, InternalServerError) as error:
            raise InvalidArgumentError.of_field("path", "a file with a config that is known here", str(error)) from None

    def check(self, table: TableDescription, *, priorities: bool, keys: bool) -> None:
        """Check that all rows can be loaded into a table; see `Table.load_parquet`.

        Raises:
            InvalidArgumentError: a column or an option does not fit, and the message names it; or a page is damaged.
        """
        self._check_columns(table, priorities=priorities, keys=keys)
        of_steps, next_key, order = table.steps is not None, table.inserted, StepOrder()
        for rows in self._rows(table, _KEY if keys else None, _PRIORITY if priorities else None):
            lack = table.may_lack_priorities
            check_loadable(table.schema, rows, of_steps=of_steps, priorities=priorities, may_lack=lack)
            if of_steps:
                order.check(rows)
            if keys:
                _check_keys(rows.row_keys, next_key)
                next_key += rows.batch_size

    def load(
        self, table: TableDescription, loader: RowLoader, *, priorities: bool, keys: bool, progress: bool
    ) -> Loaded:
        """Insert all rows; see `Table.load_parquet`.

        Raises:
            InvalidArgumentError: ``keys`` is True, but other rows were inserted meanwhile.
            ReplayError: as for `RowLoader.insert`.
        """
        bar = progress_bar(table.name, self.row_count) if progress else nullcontext(lambda _: None)
        with bar as advance:
            for rows in self._rows(table, _PRIORITY if priorities else None):
                loader.insert(rows)
                advance(rows.batch_size)
        if keys and loader.inserted and not (loader.is_contiguous and loader.first_key == table.inserted):
            error = InvalidArgumentError.of_field(
                "keys", "no other inserts meanwhile", "rows between those of the file"
            )
            error.add_note(f"{loader.inserted:,} rows were inserted before this error")
            raise error
        return Loaded(loader.inserted, loader.first_key)

    def _check_columns(self, table: TableDescription, *, priorities: bool, keys: bool) -> None:
        stored = [name for name in self._schema.names if not name.startswith("_")]
        masks = table.schema.masks
        missing = [name for name in table.schema if name not in (*stored, *masks, *masks.values())]
        unknown = [name for name in stored if name not in table.schema]
        if missing or unknown:
            got = "; ".join(
                f"{what}: {', '.join(names)}" for what, names in (("missing", missing), ("unknown", unknown)) if names
            )
            raise InvalidArgumentError.of_field("columns", ", ".join(table.schema), got)
        if table.steps is None and _STEP in self._schema.names:
            raise InvalidArgumentError.of_field("path", f"rows without steps, as in table {table.name!r}", "steps")
        for option, is_wanted, columns in (
            ("steps", table.steps is not None, _STEP_COLUMNS),
            ("priorities", priorities, (_PRIORITY,)),
            ("keys", keys, (_KEY,)),
        ):
            lacking = [name for name in columns if is_wanted and name not in self._schema.names]
            if lacking:
                raise InvalidArgumentError.of_field(option, f"a file with {', '.join(columns)}", f"no {lacking[0]}")

    def _rows(self, table: TableDescription, *optional: str | None) -> Iterator[Rows]:
        """Read the table's columns, the places in episodes, and those of the columns ``optional`` that are not None."""
        of_steps = [name for name in _STEP_COLUMNS if name in self._schema.names]
        columns = [name for name in table.schema if name in self._schema.names]
        names = [*columns, *of_steps, *(name for name in optional if name is not None)]
        if not self.row_count:
            return  # old versions of pyarrow cannot iterate over an empty file
        with _readable(self._path):
            for batch in self._file.iter_batches(rows_at_once(table, LOADED_ROWS), columns=names):
                if batch.num_rows:
                    yield _rows_of(batch, table)


def _type_of(column: Column) -> pa.DataType:
    is_bfloat16 = column.dtype.name == "bfloat16"  # which Arrow does not have; a float32 has the same values, and more
    value = pa.float32() if is_bfloat16 else pa.from_numpy_dtype(column.dtype)
    if not column.shape:
        return value
    element = pa.field("element", value, nullable=False)
    if column.optional:
        return pa.list_(element)  # older versions of pyarrow cannot write lists of a fixed size with nulls
    return pa.list_(element, column.shape[0]) if len(column.shape) == 1 else pa.fixed_shape_tensor(value, column.shape)


def _array_of(values: Array, kind: pa.DataType, is_present: Array | None) -> pa.Array:
    """Convert a column. In an optional column, rows for which ``is_present`` is False become null."""
    if values.dtype.name == "bfloat16":
        values = values.astype(np.float32)
    if values.ndim == 1:
        return _flat_array(values, is_valid=is_present)
    if is_present is not None:
        offsets = np.append(0, np.cumsum(is_present * math.prod(values.shape[1:]))).astype(np.int32)
        present = _flat_array(values[is_present].reshape(-1))
        buffers = [_bits(is_present), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(kind, len(values), buffers, children=[present])
    flat = _flat_array(values.reshape(-1))
    if isinstance(kind, pa.FixedShapeTensorType):
        return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(flat, type=kind.storage_type))
    return pa.FixedSizeListArray.from_arrays(flat, type=kind)


def _flat_array(values: Array, *, is_valid: Array | None = None) -> pa.Array:
    """Convert numbers without copying them. `pyarrow.array` would import pandas first, which takes seconds."""
    kind = pa.from_numpy_dtype(values.dtype)
    data = _bits(values) if values.dtype.kind == "b" else pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [None if is_valid is None else _bits(is_valid), data])


def _bits(flags: Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags.view(np.uint8), bitorder="little"))


def _repetitive(schema: pa.Schema) -> list[str]:
    """Return the Parquet paths of columns with few distinct values, which dictionaries make smaller."""
    found = list(_LINKS)
    for field in schema:
        is_nested = hasattr(field.type, "value_type")
        if (field.type.value_type if is_nested else field.type) in (pa.int8(), pa.uint8()):
            found.append(f"{field.name}.list.element" if is_nested else field.name)
    return found


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file. It replaces ``path`` after the block, or is removed after an error."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Convert pyarrow's errors about the content of a file to `InvalidArgumentError`."""
    try:
        yield
    except (pa.ArrowInvalid, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the operating system
        raise InvalidArgumentError.of_field("path", "an intact Parquet file", f"{path!r}: {error}") from None


def _check_keys(keys: NDArray[np.int64], first: int) -> None:
    expected = np.arange(first, first + len(keys))
    if (keys != expected).any():
        place = int(np.argmax(keys != expected))
        wanted = f"key {expected[place]}, the next key of the table, because a table numbers its rows itself"
        raise InvalidArgumentError.of_field("keys", wanted, str(keys[place]))


def _rows_of(batch: pa.RecordBatch, table: TableDescription) -> Rows:
    count, of_steps = batch.num_rows, table.steps is not None
    ends = np.zeros(count, np.uint8)
    for end, name in enumerate(_ENDS, 1):
        ends[_optional(batch, name, pa.bool_())] = end
    return Rows(
        row_keys=_optional(batch, _KEY, pa.int64()),
        columns=_columns(batch, table.schema),
        priorities=_priorities(batch) if _PRIORITY in batch.schema.names else np.full(count, np.nan),
        streams=_optional(batch, _LINKS[0], pa.uint64()),
        episodes=_optional(batch, _LINKS[1], pa.uint64()),
        steps=_optional(batch, _STEP, pa.int64()) if of_steps else None,
        ends=ends if of_steps else None,
    )


def _optional(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> NDArray[Any]:
    """Return a column, or zeros if the file lacks it."""
    if name not in batch.schema.names:
        return np.zeros(batch.num_rows, kind.to_pandas_dtype())
    return _values(name, _cast(name, batch.column(name), kind))


def _priorities(batch: pa.RecordBatch) -> NDArray[np.float64]:
    """Return the priorities, with NaN for nulls."""
    array = _cast(_PRIORITY, batch.column(_PRIORITY), pa.float64())
    is_valid = _numbers(array.is_valid())
    values = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)
    return np.where(is_valid, _numbers(values), np.nan)


def _cast(name: str, array: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgumentError.of_field(f"columns.{name}", str(kind), f"{array.type}: {error}") from None


def _columns(batch: pa.RecordBatch, schema: Schema) -> dict[str, Array]:
    """Convert the columns of a table. Optional ones may be missing; their masks are derived from nulls."""
    columns: dict[str, Array] = {}
    for name, column in schema.items():
        if name not in batch.schema.names:
            continue
        array = batch.column(name)
        if name not in schema.masks or not array.null_count:
            columns[name] = _column(name, column, array)
            continue
        is_present = columns[schema.masks[name]] = _numbers(array.is_valid())
        if is_present.any():
            given = _column(name, column, array.drop_null())
            columns[name] = np.zeros((len(array), *given.shape[1:]), given.dtype)
            columns[name][is_present] = given
    return columns


def _column(name: str, column: Column, array: pa.Array) -> Array:
    values = _values(name, array)
    if values.ndim == 2 and len(column.shape) > 1 and values.shape[1] == math.prod(column.shape):
        return values.reshape(-1, *column.shape)  # a tensor, whose shape another program has dropped
    return values


def _values(name: str, array: pa.Array) -> Array:
    """Convert an array, whose elements may be lists or tensors, to ``dtype[n, *shape]``."""
    if isinstance(array.type, pa.FixedShapeTensorType) and array.type.permutation is None:
        shape = tuple(array.type.shape)
        return _values(name, array.storage).reshape(-1, *shape)
    if array.null_count:
        raise InvalidArgumentError.of_field(f"columns.{name}", "no nulls", f"{array.null_count} in {len(array)} rows")
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _values(name, array.flatten())
        size = len(inner) // len(array)
        if not pa.types.is_fixed_size_list(kind) and any(np.diff(array.offsets.to_numpy()) != size):
            raise InvalidArgumentError.of_field(f"columns.{name}", "lists of the same length", "different lengths")
        return inner.reshape(len(array), size, *inner.shape[1:])
    return _numbers(array)


def _numbers(array: pa.Array) -> Array:
    """Convert an array without nulls to ``dtype[n]``, without copying. `to_numpy` would import pandas first."""
    if pa.types.is_boolean(array.type):
        return _numbers(array.cast(pa.uint8())).view(bool)
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        return np.from_dlpack(array)
    values: Array = array.to_numpy(zero_copy_only=False)  # of another kind, which the checks refuse
    return values
