"""What comes back from a table: batches, rows by key, and what became of updates.

Arrays are the caller's own, and writable: those of rows lie in the very bytes that were received, which nothing
else refers to, so nothing is copied (but for columns that did not come to lie on a multiple of their element's
size, which are copied once). They stay valid for as long as somebody holds one of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array, Framed, column_views
from replay_proto.schema import Schema
from replay_proto.v1 import replay_pb2

from replay_client._rows.columns import Columns, T_co
from replay_client._rows.mapped_rows import MappedRows
from replay_client.errors import InternalServerError


@dataclass(frozen=True, eq=False, repr=False)
class Drawn(Columns[T_co]):
    """Rows drawn by priority, as arrays or as tensors; everything in it is as at the moment of drawing."""

    row_keys: NDArray[np.int64]
    """int64[batch]: key of each row. Tensors have them as an array, too: updates are sent from this side."""
    columns: Mapping[str, T_co]
    """By column, in the order of the schema: ``dtype[batch, *shape]``."""
    probabilities: T_co
    """float64[batch]: of each row, its mass over the total mass. Its expected count is the batch size times it."""
    weights: T_co
    """float32[batch]: (size * probability) ** -beta, over the norm asked for (Schaul et al. 2016, section 3.4)."""
    beta: float
    """Exponent of the weights."""
    size: int
    """Live rows in the table."""
    total_mass: float
    """Mass of all live rows."""
    smallest_probability: float
    """Probability of the least probable live row of non-zero mass."""
    inserted: int
    """Rows ever inserted: how far the table had come."""


@dataclass(frozen=True, eq=False, repr=False)
class Batch(Drawn[NDArray[Any]]):
    """A batch as NumPy arrays."""

    probabilities: NDArray[np.float64]
    weights: NDArray[np.float32]


@dataclass(frozen=True, eq=False, repr=False)
class Rows(Columns[NDArray[Any]]):
    """Rows read by key: those that are live, in the order in which they were asked for."""

    row_keys: NDArray[np.int64]
    """int64[n]: key of each row."""
    columns: Mapping[str, NDArray[Any]]
    """By column, in the order of the schema: ``dtype[n, *shape]``."""
    priorities: NDArray[np.float64]
    """float64[n]: as last set, before any exponent."""
    streams: NDArray[np.uint64]
    """uint64[n]: the stream of experience each belongs to; 0 if it was not said."""
    episodes: NDArray[np.uint64]
    """uint64[n]: the episode of each within its stream."""


@dataclass(frozen=True)
class UpdateResult:
    """What became of an update of priorities."""

    updated: int
    """Distinct rows whose priority was set."""
    stale: int
    """Keys that are not live, each time they were named; they were ignored."""

    @classmethod
    def from_proto(cls, message: replay_pb2.UpdateResult) -> UpdateResult:
        """Read it from a message."""
        return cls(updated=message.updated, stale=message.stale)


def sampled_batch(
    schema: Schema, response: Framed[replay_pb2.SampleResponse], mapped: MappedRows | None
) -> Batch | None:
    """The batch in an answer to Sample.

    Args:
        schema: the table's.
        response: what came.
        mapped: copies the rows if the answer has none.

    Returns:
        The batch; None if inserts overtook the copying of its rows.
    """
    return _batch(schema, response.head.batch, response.rows, mapped)


def learned_batches(
    schema: Schema, response: Framed[replay_pb2.LearnResponse], mapped: MappedRows | None
) -> list[Batch | None]:
    """The batches in an answer of a Learn stream, in order; see `sampled_batch`."""
    batches, start = [], 0
    for message in response.head.batches:
        end = start + len(message.keys) // 8 * schema.row_bytes
        batches.append(_batch(schema, message, response.rows[start:end], mapped))
        start = end
    return batches


def read_rows(schema: Schema, response: Framed[replay_pb2.ReadResponse]) -> Rows:
    """The rows in an answer to Read."""
    head = response.head
    keys = _own(head.keys, "<i8")
    return Rows(
        row_keys=keys,
        columns=_own_columns(schema, response.rows, len(keys)),
        priorities=_own(head.priorities, "<f8"),
        streams=_own(head.streams, "<u8"),
        episodes=_own(head.episodes, "<u8"),
    )


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """Rows of several answers to Read as one; at least one."""
    if len(parts) == 1:
        return parts[0]
    return Rows(
        row_keys=np.concatenate([part.row_keys for part in parts]),
        columns={name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
        priorities=np.concatenate([part.priorities for part in parts]),
        streams=np.concatenate([part.streams for part in parts]),
        episodes=np.concatenate([part.episodes for part in parts]),
    )


def _batch(schema: Schema, message: replay_pb2.Batch, rows: memoryview, mapped: MappedRows | None) -> Batch | None:
    keys = _own(message.keys, "<i8")
    columns = mapped.gather(keys) if mapped is not None and not rows else _own_columns(schema, rows, len(keys))
    if columns is None:
        return None
    return Batch(
        row_keys=keys,
        columns=columns,
        probabilities=_own(message.probabilities, "<f8"),
        weights=_own(message.weights, "<f4"),
        beta=message.beta,
        size=message.size,
        total_mass=message.total_mass,
        smallest_probability=message.smallest_probability,
        inserted=message.inserted,
    )


def _own(data: bytes, dtype: str) -> NDArray[Any]:
    """A copy of a small array: what protobuf hands out may be shared."""
    return np.frombuffer(data, dtype).copy()


def _own_columns(schema: Schema, rows: memoryview, row_count: int) -> dict[str, Array]:
    """Columns that are the caller's to keep and to write to.

    Raises:
        InternalServerError: the answer does not hold this many rows of this schema.
    """
    if len(rows) != row_count * schema.row_bytes:
        raise InternalServerError(
            f"the server sent {len(rows)} bytes of rows where {row_count} of {schema.row_bytes} bytes were due"
        )
    views = column_views(schema, _writable(rows), row_count)
    return {name: view if view.flags.aligned else view.copy() for name, view in views.items()}


def _writable(received: memoryview) -> NDArray[np.uint8]:
    """A writable view of bytes that were just received.

    Of frames they lie in a buffer that is ours to write to. gRPC made a bytes object for this one message and kept no
    reference: apart from our own view nobody sees it, so that writing to it surprises nobody. It saves the copy that
    writable arrays would cost otherwise.
    """
    if not received:
        return np.empty(0, np.uint8)
    if not received.readonly:
        return np.frombuffer(received, np.uint8)
    address = np.frombuffer(received, np.uint8).__array_interface__["data"][0]
    region = (ctypes.c_uint8 * len(received)).from_address(address)
    region.keeps_alive = received  # type: ignore[attr-defined]
    return np.frombuffer(memoryview(region), np.uint8)
