"""Validates fields of requests: converts bytes to arrays, and checks that numbers are in range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from replay_proto import framing
from replay_proto.errors import FieldError
from replay_proto.framing import Array, Carried
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2

from replay_server.storage.delivery_log import READER_ID_BYTES, ReaderStamp
from replay_server.storage.format import UID_BYTES
from replay_server.storage.runs import MAX_STEP, TERMINATED, Runs
from replay_server.storage.writer_records import WRITER_ID_BYTES
from replay_server.table.draws import Draw, DrawMode, WeightNorm
from replay_server.table.updates import first_unusable

_DRAW_MODES = {
    replay_pb2.DRAW_MODE_UNSPECIFIED: DrawMode.STRATIFIED,
    replay_pb2.DRAW_MODE_STRATIFIED: DrawMode.STRATIFIED,
    replay_pb2.DRAW_MODE_INDEPENDENT: DrawMode.INDEPENDENT,
    replay_pb2.DRAW_MODE_WITHOUT_REPLACEMENT: DrawMode.WITHOUT_REPLACEMENT,
    replay_pb2.DRAW_MODE_NEWEST_FIRST: DrawMode.NEWEST_FIRST,
}
_WEIGHT_NORMS = {
    replay_pb2.WEIGHT_NORM_UNSPECIFIED: WeightNorm.BATCH,
    replay_pb2.WEIGHT_NORM_BATCH: WeightNorm.BATCH,
    replay_pb2.WEIGHT_NORM_TABLE: WeightNorm.TABLE,
}

_LARGEST_FINITE = float(np.finfo(np.float64).max)
MAX_AHEAD = 1 << 20
"""Limit on batches in flight: far above realistic values, and small enough that their sum cannot overflow."""
MAX_BATCHES = 256
"""Maximum batches per request. Other callers wait while these batches are drawn."""
MAX_DISTINCT_BATCHES = 4
"""The same without replacement, which takes longer."""


def table_uid(value: bytes, *, required: bool = False) -> bytes:
    """Check a table's uid, which may be empty unless ``required``."""
    if len(value) == UID_BYTES or (not value and not required):
        return value
    allowed = f"{UID_BYTES} bytes" + ("" if required else ", or none")
    raise FieldError("table_uid", allowed, f"{len(value)} bytes")


def writer_id(value: bytes) -> bytes:
    """Check a writer's id."""
    if len(value) != WRITER_ID_BYTES:
        raise FieldError("writer_id", f"{WRITER_ID_BYTES} bytes", f"{len(value)} bytes")
    return value


def reader(value: replay_pb2.ReaderStamp) -> ReaderStamp:
    """Convert and check the number of a draw."""
    if len(value.reader_id) != READER_ID_BYTES:
        raise FieldError("reader.reader_id", f"{READER_ID_BYTES} bytes", f"{len(value.reader_id)} bytes")
    at_least("reader.sequence", 1, value.sequence)
    if not 0 <= value.received < value.sequence:
        raise FieldError("reader.received", f"0 to {value.sequence - 1}, below the sequence", str(value.received))
    return ReaderStamp(value.reader_id, value.sequence, value.received)


def keys(value: bytes) -> NDArray[np.int64]:
    """Convert keys to int64[n]."""
    if len(value) % 8:
        raise FieldError("keys", "int64[n]: a multiple of 8 bytes", f"{len(value)} bytes")
    return np.frombuffer(value, "<i8").copy()  # kernels need writable arrays


def numbers(field: str, value: bytes) -> NDArray[np.float64]:
    """Convert finite numbers to float64[n]."""
    if len(value) % 8:
        raise FieldError(field, "float64[n]: a multiple of 8 bytes", f"{len(value)} bytes")
    array = np.frombuffer(value, "<f8").copy()  # kernels need writable arrays
    is_finite = np.isfinite(array)
    if not is_finite.all():
        raise FieldError(field, "finite numbers", f"{array[~is_finite][0]}")
    return array


def priority(field: str, value: float, limit: float) -> float:
    """Check a single priority; ``limit`` is the largest that the backend accepts."""
    if not 0.0 <= value <= min(limit, _LARGEST_FINITE):
        raise FieldError(field, f"a finite number from 0 to {min(limit, _LARGEST_FINITE):g}", str(value))
    return value


def priorities(value: bytes, count: int, limit: float) -> NDArray[np.float64]:
    """Convert priorities to float64[count], and check them. ``limit`` is the largest that the backend accepts."""
    if len(value) != 8 * count:
        raise FieldError("priorities", f"float64[{count}]: {8 * count} bytes", f"{len(value)} bytes")
    array = np.frombuffer(value, "<f8").copy()  # kernels need writable arrays
    place = first_unusable(array, min(limit, _LARGEST_FINITE))
    if place >= 0:
        most = f" and at most {limit:g}" if math.isfinite(limit) else ""
        raise FieldError("priorities", f"finite numbers of at least 0{most}", f"{array[place]} at position {place}")
    return array


def runs(insertion: replay_pb2.Insertion, row_count: int, *, of_steps: bool) -> Runs | None:
    """Convert and check the runs of an insert, or return None if it has none.

    If ``of_steps``, the table is a table of steps, and runs are required.
    """
    if not insertion.HasField("runs"):
        if of_steps:
            raise FieldError("runs", "the runs of these rows, in a table of steps", "none")
        return None
    message = insertion.runs
    counts = _run_array("row_counts", message.row_counts, "<i8", None)
    if not len(counts) or counts.min() < 1 or counts.max() > row_count or int(counts.sum()) != row_count:
        got = f"{len(counts)} numbers, {int(counts.sum())} together" if len(counts) else "none"
        raise FieldError("runs.row_counts", f"numbers of at least 1 that sum to {row_count}", got)
    streams = _run_array("streams", message.streams, "<u8", len(counts))
    episodes = _run_array("episodes", message.episodes, "<u8", len(counts))
    if not of_steps:
        _run_array("first_steps", message.first_steps, "<i8", 0)
        _run_array("ends", message.ends, "u1", 0)
        return Runs(counts, streams, episodes)
    first_steps = _run_array("first_steps", message.first_steps, "<i8", len(counts))
    ends = _run_array("ends", message.ends, "u1", len(counts))
    if not 0 <= first_steps.min() <= first_steps.max() <= MAX_STEP:
        raise FieldError("runs.first_steps", f"0 to {MAX_STEP}", f"{first_steps.min()} to {first_steps.max()}")
    if ends.max() > TERMINATED:
        raise FieldError("runs.ends", f"0 to {TERMINATED}", str(ends.max()))
    return Runs(counts, streams, episodes, first_steps, ends)


def _run_array(name: str, value: bytes, dtype: str, length: int | None) -> NDArray[Any]:
    """Convert an array of ``length`` values. If ``length`` is None, accept any number of values."""
    size = np.dtype(dtype).itemsize
    if len(value) % size or length not in (None, len(value) // size):
        expected = f"{np.dtype(dtype).name}[{'m' if length is None else length}]"
        raise FieldError(f"runs.{name}", expected, f"{len(value)} bytes")
    return np.frombuffer(value, dtype)


def columns(schema: Mapping[str, Column], rows: memoryview, count: int) -> dict[str, Array]:
    """Split the rows of an insert or update into columns, which are views of the message."""
    row_bytes = schema.row_bytes if isinstance(schema, Schema) else sum(each.row_bytes for each in schema.values())
    expected = count * row_bytes
    if len(rows) != expected:
        raise FieldError("rows", f"{expected} bytes ({count} rows of {row_bytes})", f"{len(rows)} bytes")
    views = framing.column_views(schema, rows, count)
    for name, values in views.items():
        if (
            values.dtype == np.bool_
            and (largest := int(np.maximum.reduce(values.view(np.uint8), axis=None, initial=0))) > 1
        ):
            raise FieldError(f"rows.{name}", "bytes 0 or 1", f"byte {largest}")
    return views


def carried(request: replay_pb2.Draw | replay_pb2.ReadRequest, schema: Schema, unless_chosen: Carried) -> Carried:
    """Return the columns that a request chooses, or ``unless_chosen`` if it makes no choice."""
    if not request.HasField("columns"):
        return unless_chosen
    return Carried(_named(request.columns, schema, schema, "stored columns"))


def mutable(given: replay_pb2.ColumnNames, schema: Schema) -> dict[str, Column]:
    """Return the columns that an update writes, in the order of the schema."""
    if not given.names:
        raise FieldError("columns", "at least one name", "none")
    return _named(given, schema, schema.mutable, "mutable columns")


def _named(
    given: replay_pb2.ColumnNames, schema: Schema, allowed: Mapping[str, Column], what: str
) -> dict[str, Column]:
    if len(given.names) > len(schema):  # before iterating over them
        raise FieldError("columns", f"at most {len(schema)} names", f"{len(given.names)}")
    names = set(given.names)
    if refused := names - allowed.keys():
        raise FieldError("columns", f"{what}: {', '.join(allowed) or 'none in this table'}", repr(min(refused)))
    return {name: column for name, column in schema.items() if name in names}


def at_least(field: str, least: int, value: int, where: str = "") -> int:
    """Check that a number is at least ``least``. A refusal states this condition, followed by ``where``."""
    if value < least:
        raise FieldError(field, f"at least {least}{where}", str(value))
    return value


def draw(value: replay_pb2.Draw) -> Draw:
    """Convert and check the parameters of a draw."""
    at_least("batch_size", 1, value.batch_size)
    if not (math.isfinite(value.beta) and value.beta >= 0):
        raise FieldError("beta", "a finite number of at least 0", str(value.beta))
    mode = _DRAW_MODES.get(value.draw_mode)
    if mode is None:
        expected = "STRATIFIED (1), INDEPENDENT (2), WITHOUT_REPLACEMENT (3) or NEWEST_FIRST (4)"
        raise FieldError("draw_mode", expected, str(value.draw_mode))
    norm = _WEIGHT_NORMS.get(value.weight_norm)
    if norm is None:
        raise FieldError("weight_norm", "BATCH (1) or TABLE (2)", str(value.weight_norm))
    return Draw(value.batch_size, value.beta, norm, mode)


def insert_wait_s(insertion: replay_pb2.Insertion) -> float | None:
    """Return for how many seconds an insert may wait. None means as long as its call lasts."""
    return wait_s(insertion.wait_s) if insertion.HasField("wait_s") else None


def wait_s(value: float) -> float:
    """Check a time limit in seconds. Infinity means as long as the call or stream lasts."""
    if not value >= 0:
        raise FieldError("wait_s", "a number of seconds, at least 0", str(value))
    return value


def up_to(field: str, most: int, value: int) -> int:
    """Check that a number is between 0 and ``most``."""
    if not 0 <= value <= most:
        raise FieldError(field, f"0 to {most}", str(value))
    return value
