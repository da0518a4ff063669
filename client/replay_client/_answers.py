"""Decodes batches and rows from a server's replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array, column_views, split_message
from replay_proto.schema import Schema
from replay_proto.v1 import replay_pb2

from replay_client._rows.buffers import ColumnBuffers
from replay_client._rows.mapped_rows import MappedRows
from replay_client.batch import Batch, Rows
from replay_client.errors import InternalServerError

_KEY_BYTES = 8


class AnswerReader:
    """Decodes replies about one table. Thread-safe."""

    def __init__(self, schema: Schema, mapped: MappedRows | None) -> None:
        """``mapped`` copies rows from the server's files; None: every reply contains its rows."""
        self.mapped = mapped
        self._schema = schema
        self._buffers = ColumnBuffers(schema)

    def sampled(self, answer: bytes) -> Batch | None:
        """Decode the batch in a reply to Sample; return None if inserts overwrote its rows during the copy."""
        head, rows = split_message(replay_pb2.SampleResponse, answer)
        return self._batch(head.batch, rows)

    def learned(self, answer: bytes) -> tuple[replay_pb2.UpdateResult, list[Batch | None]]:
        """Decode a reply to Learn: the result of the update, and the batches as returned by `sampled`."""
        head, rows = split_message(replay_pb2.LearnResponse, answer)
        batches, start = [], 0
        for message in head.batches:
            end = start + len(message.keys) // _KEY_BYTES * self._schema.row_bytes
            batches.append(self._batch(message, rows[start:end]))
            start = end
        return head.update, batches

    def read(self, answer: bytes) -> Rows:
        """Decode the rows in a reply to Read."""
        head, rows = split_message(replay_pb2.ReadResponse, answer)
        keys = _own(head.keys, "<i8")
        return Rows(
            row_keys=keys,
            columns=self._received(rows, len(keys)),
            priorities=_own(head.priorities, "<f8"),
            streams=_own(head.streams, "<u8"),
            episodes=_own(head.episodes, "<u8"),
        )

    def _batch(self, message: replay_pb2.Batch, rows: memoryview) -> Batch | None:
        keys = _own(message.keys, "<i8")
        columns = self._received(rows, len(keys)) if rows or self.mapped is None else self._copied(self.mapped, keys)
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

    def _copied(self, mapped: MappedRows, keys: NDArray[np.int64]) -> dict[str, Array] | None:
        columns = self._buffers.blank(len(keys))
        return columns if mapped.gather(keys, columns) else None

    def _received(self, rows: memoryview, row_count: int) -> dict[str, Array]:
        """Copy received columns for the caller, because gRPC's memory is read-only and unaligned.

        Raises:
            InternalServerError: the reply's size does not match the schema and the number of rows.
        """
        row_bytes = self._schema.row_bytes
        if len(rows) != row_count * row_bytes:
            raise InternalServerError(
                f"the server sent {len(rows)} bytes of rows where {row_count} of {row_bytes} bytes were due"
            )
        columns = self._buffers.blank(row_count)
        for name, view in column_views(self._schema, rows, row_count).items():
            np.copyto(columns[name], view)
        return columns


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """Concatenate the rows of one or more replies to Read."""
    if len(parts) == 1:
        return parts[0]
    return Rows(
        row_keys=np.concatenate([part.row_keys for part in parts]),
        columns={name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
        priorities=np.concatenate([part.priorities for part in parts]),
        streams=np.concatenate([part.streams for part in parts]),
        episodes=np.concatenate([part.episodes for part in parts]),
    )


def _own(data: bytes, dtype: str) -> NDArray[Any]:
    """Copy a small array, because protobuf's bytes may be shared."""
    return np.frombuffer(data, dtype).copy()
