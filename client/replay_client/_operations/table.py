"""The operations of a table; see `replay_client.sync.table.Table` for their arguments, results and errors."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_proto.framing import Array
from replay_proto.schema import Column
from replay_proto.v1 import replay_pb2

from replay_client._learning.answers import BatchReader, RowsReader, joined_rows
from replay_client._learning.combining import combined
from replay_client._operations.episode import keys_of_episode
from replay_client._operations.reading import no_steps
from replay_client._operations.server import describe
from replay_client._rows.buffers import Blank, JoinedBuffers
from replay_client._rows.checks import (
    checked_keys,
    checked_priorities,
    checked_rows,
    checked_update,
    packed_update,
    update_parts,
)
from replay_client._rows.columns import BatchOrKeys, chosen_columns, chosen_of_steps
from replay_client._rows.mapped_rows import NearRows
from replay_client._transport.call import ANSWER_MARGIN_S, Call, Operation, time_limit
from replay_client._transport.connection import SessionOptions
from replay_client._transport.request_ids import RequestId, RequestIds
from replay_client._writing.inserts import Inserts
from replay_client.batch import Batch, Rows, UpdateResult
from replay_client.draws import DrawMode, WeightNorm, draw_of
from replay_client.errors import InvalidArgumentError, ReplayError, TableReplacedError
from replay_client.results.description import FIFO, TableDescription

READ_BYTES: Final = 32 << 20
"""Maximum bytes of rows per reply: larger reads are split."""
_CHOICES_KEPT: Final = 4
"""Number of column selections whose readers are kept, because readers own reusable memory."""


class TableOperations:
    """See the module. Thread-safe."""

    def __init__(self, table: TableDescription, near: NearRows, timeout_s: float) -> None:
        """Use a table. ``near`` has what copies rows from the server's files, if that is possible.

        ``timeout_s`` is the client's default time limit.
        """
        self._table = table
        self._near = near
        self._new_batch_reader = partial(BatchReader, table.schema, table.steps)
        self._batch_reader = lru_cache(_CHOICES_KEPT)(self._new_batch_reader)
        self._rows_reader = lru_cache(_CHOICES_KEPT)(
            partial(RowsReader, table.schema, of_steps=table.steps is not None)
        )
        self.timeout_s: Final = timeout_s
        """The client's default time limit in seconds."""
        self._inserts = Inserts(table)
        self._reader_ids = RequestIds()

    def insert(
        self, rows: Mapping[str, Any], *, priorities: ArrayLike | None, timeout_s: float | None
    ) -> Operation[NDArray[np.int64]]:
        """Insert rows exactly once, and return their keys."""
        table = self._table
        if table.steps is not None:
            expected = "a table without steps; use `Table.writer`, because a step belongs to an episode"
            raise InvalidArgumentError.of_field("rows", expected, f"table {table.name!r}, with steps")
        columns, row_count = checked_rows(table.schema, rows)
        checked = None if priorities is None else checked_priorities(priorities, row_count)
        wait_s = time_limit("timeout_s", timeout_s, self.timeout_s)
        keys: list[NDArray[np.int64]] = []
        for part in _parts(row_count, table.rows_per_insert):
            values = {name: array[part] for name, array in columns.items()}
            given = None if checked is None else checked[part]
            try:
                keys.append((yield from self.insert_part(values, given, None, wait_s)))
            except ReplayError as error:
                if part.start:
                    error.add_note(f"{part.start} of {row_count} rows were inserted before this error")
                raise
        return _joined(keys)

    def insert_part(
        self,
        columns: Mapping[str, Array],
        priorities: NDArray[np.float64] | None,
        runs: replay_pb2.Runs | None,
        wait_s: float,
        insert_id: RequestId | None = None,
    ) -> Operation[NDArray[np.int64]]:
        """Insert checked rows in one request, and return their keys; see `Inserts.insert`."""
        timeout_s, margin_s = self._limits(wait_s)
        ranges = yield from self._inserts.insert(
            columns,
            priorities,
            runs=runs,
            wait_s=wait_s,
            timeout_s=timeout_s,
            margin_s=margin_s,
            insert_id=insert_id,
        )
        return _joined(ranges)

    def chosen(self, columns: Collection[str] | None) -> tuple[str, ...] | None:
        """Return the names of a batch's chosen columns, or None for all."""
        table = self._table
        if table.steps is None:
            return chosen_columns(table.schema, columns, table.schema.masks)
        return chosen_of_steps(table.steps, columns)

    def batch_reader(
        self, names: tuple[str, ...] | None, blank: Blank | None = None, *, read_only: bool = False
    ) -> BatchReader:
        """Return a reader of batches with the columns `names`, in memory from ``blank``; see `BatchReader`."""
        return self._batch_reader(names) if blank is None else self._new_batch_reader(names, blank, read_only=read_only)

    def draw(
        self,
        batch_size: int,
        beta: float,
        weight_norm: WeightNorm,
        draw_mode: DrawMode,
        timeout_s: float | None,
        reader: BatchReader,
        row_info: bool = False,
    ) -> replay_pb2.Draw:
        """Check and build the message for a draw with the reader's columns."""
        wait_s = time_limit("timeout_s", timeout_s, self.timeout_s)
        return draw_of(batch_size, beta, weight_norm, draw_mode, wait_s, reader.names, row_info)

    def sample(self, draw: replay_pb2.Draw, reader: BatchReader) -> Operation[Batch]:
        """Draw a batch."""
        mapped = self._near.mapped
        same_host = None if mapped is None else mapped.request
        if self._table.backend == FIFO:
            with self._reader_ids.lend() as used:
                stamp = replay_pb2.ReaderStamp(
                    reader_id=used.sender_id, sequence=used.sequence, received=used.sequence - 1
                )
                answer = yield self._draw_call(draw, same_host, stamp)
        else:
            answer = yield self._draw_call(draw, same_host)
        return reader.sampled(answer, draw, mapped) or (yield from self.sample_again(draw, reader))

    def sample_again(self, draw: replay_pb2.Draw, reader: BatchReader) -> Operation[Batch]:
        """Draw a replacement for a batch whose rows were overwritten during the copy; the reply contains the rows."""
        mapped = self._near.mapped
        answer = yield self._draw_call(draw, None if mapped is None else mapped.request_again)
        batch = reader.sampled(answer, draw)
        assert batch is not None
        return batch

    def update_priorities(self, batch_or_keys: BatchOrKeys, priorities: ArrayLike) -> Operation[UpdateResult]:
        """Update priorities."""
        keys = checked_keys(batch_or_keys)
        values = checked_priorities(combined(batch_or_keys, priorities, self._table.steps), len(keys))
        updated = stale = 0
        for part in _parts(len(keys), self._table.keys_per_call):
            update = replay_pb2.PriorityUpdate(keys=keys[part].tobytes(), priorities=values[part].tobytes())
            request = replay_pb2.UpdatePrioritiesRequest(
                table=self._table.name, table_uid=self._table.uid, update=update
            )
            answer = yield Call("UpdatePriorities", request.SerializeToString())
            result = replay_pb2.UpdatePrioritiesResponse.FromString(bytes(answer)).result
            updated += result.updated
            stale += result.stale
        return UpdateResult(updated, stale)

    def hear(self, others_largest: float) -> Operation[None]:
        """Tell a shard the largest priority in the other shards of its table."""
        update = replay_pb2.PriorityUpdate(others_largest=others_largest)
        request = replay_pb2.UpdatePrioritiesRequest(table=self._table.name, table_uid=self._table.uid, update=update)
        yield Call("UpdatePriorities", request.SerializeToString())

    def update(self, keys: ArrayLike, columns: Mapping[str, Any]) -> Operation[UpdateResult]:
        """Write mutable columns again."""
        table = self._table
        checked, values = checked_update(table.schema, keys, columns)
        updated = stale = 0
        for update, rows in update_parts(table.schema, checked, values, table.keys_per_call):
            request = replay_pb2.UpdateRowsRequest(table=table.name, table_uid=table.uid, update=update)
            answer = yield Call("UpdateRows", packed_update(request, table.schema, rows))
            result = replay_pb2.UpdateRowsResponse.FromString(bytes(answer)).result
            updated += result.updated
            stale += result.stale
        return UpdateResult(updated, stale)

    def read(
        self,
        batch_or_keys: BatchOrKeys,
        *,
        columns: Collection[str] | None = None,
        wait_s: float = 0.0,
        rows_at_once: int | None = None,
    ) -> Operation[Rows]:
        """Read live rows by key.

        Args:
            batch_or_keys: the keys.
            columns: the columns to read; None: all.
            wait_s: how long to wait for keys that have not been used yet.
            rows_at_once: maximum rows per request. The first rows can be copied while the others are inserted.
        """
        keys = checked_keys(batch_or_keys)
        schema = self._table.schema
        reader = self._rows_reader(chosen_columns(schema, columns, schema.masks))
        most = max(1, min(READ_BYTES // max(1, reader.row_bytes), self._table.keys_per_call, rows_at_once or len(keys)))
        parts = _parts(len(keys), most)
        if len(parts) == 1:
            return (yield from self._read_part(keys, wait_s, reader, reader.buffers.blank))
        buffers = JoinedBuffers(reader.buffers, [part.stop - part.start for part in parts])
        waits_until = time.monotonic() + wait_s
        answers = []
        for index, part in enumerate(parts):
            left_s = max(0.0, waits_until - time.monotonic())
            answers.append((yield from self._read_part(keys[part], left_s, reader, partial(buffers.blank, index))))
        is_complete = sum(rows.batch_size for rows in answers) == len(keys)
        return joined_rows(answers, buffers.joined([rows.columns for rows in answers]) if is_complete else None)

    def copied(self, keys: NDArray[np.int64], columns: Collection[str]) -> Mapping[str, NDArray[Any]] | None:
        """Copy rows that a reply has just named from the server's files; None: this is impossible, so read them."""
        mapped = self._near.mapped
        if mapped is None or mapped.is_refused:  # the reply was of another server
            return None
        return self._rows_reader(tuple(columns)).copied(keys, mapped)

    def _read_part(self, keys: NDArray[np.int64], wait_s: float, reader: RowsReader, blank: Blank) -> Operation[Rows]:
        """Read rows in one request. Copy them from the server's files if possible, unless these are overwritten."""
        table, mapped = self._table, self._near.mapped
        request = replay_pb2.ReadRequest(
            table=table.name, table_uid=table.uid, keys=keys.tobytes(), columns=reader.names, wait_s=wait_s
        )
        timeout_s, margin_s = self._limits(wait_s)
        if mapped is not None:
            request.same_host.CopyFrom(mapped.request)
        rows = reader.read((yield Call("Read", request.SerializeToString(), True, timeout_s, margin_s)), blank, mapped)
        if rows is None and mapped is not None:
            request.same_host.CopyFrom(mapped.request_again)
            rows = reader.read((yield Call("Read", request.SerializeToString(), True, timeout_s, margin_s)), blank)
        assert rows is not None
        return rows

    def episode(self, key: int, *, columns: Collection[str] | None = None) -> Operation[Rows]:
        """Read the live rows of the episode of a row."""
        if self._table.steps is None:
            raise no_steps(self._table)
        checked = checked_keys([key])
        names = chosen_columns(self._table.schema, columns, self._table.schema.masks)
        keys = yield from keys_of_episode(partial(self.read, columns=()), checked)
        return (yield from self.read(keys, columns=names))

    def describe(self) -> Operation[TableDescription]:
        """Fetch the current description of this table. Raises `TableReplacedError` if another table has its name."""
        description = yield from describe(self._table.name)
        if description.uid != self._table.uid:
            raise TableReplacedError(
                f"table {description.name!r} was dropped, and another table now has its name",
                reason="TABLE_REPLACED",
                metadata={"table": description.name},
            )
        return description

    def _draw_call(
        self,
        draw: replay_pb2.Draw,
        same_host: replay_pb2.SameHost | None,
        stamp: replay_pb2.ReaderStamp | None = None,
    ) -> Call:
        request = replay_pb2.SampleRequest(
            table=self._table.name, table_uid=self._table.uid, draw=draw, same_host=same_host, reader=stamp
        )
        timeout_s, margin_s = self._limits(draw.wait_s)
        return Call("Sample", request.SerializeToString(), timeout_s=timeout_s, margin_s=margin_s)

    def _limits(self, wait_s: float) -> tuple[float, float]:
        """Return `Call.timeout_s` and `Call.margin_s` for a draw that may wait ``wait_s`` seconds on the server."""
        return (wait_s, ANSWER_MARGIN_S) if wait_s else (self.timeout_s, 0.0)


class TableHandle:
    """Base class of the tables of all clients, without I/O."""

    def __init__(
        self, description: TableDescription, options: SessionOptions, near: NearRows, *, created: bool
    ) -> None:
        self.created: Final = created
        """Whether `ReplayClient.create_table` created the table; False if it already existed."""
        self.name: Final = description.name
        """Name of the table, unique on the server."""
        self.uid: Final = description.uid
        """16 random bytes that distinguish this table from earlier tables with the same name."""
        self.schema: Final = description.schema
        """Stored columns by name, in storage order."""
        self.steps: Final = description.steps
        """The items and derived columns of a table of steps; None if this is not a table of steps."""
        self.capacity: Final = description.capacity
        """Maximum number of rows."""
        self.backend: Final = description.backend
        """Name of the backend."""
        self.parameters: Final = description.parameters
        """Parameters of the backend, including defaults."""
        self.slots: Final = description.slots
        """Size of the ring in rows: row k is in slot k % slots."""
        self._description = description
        self.address: Final = options.address
        """Address of the server; of a table on several servers, that of the first one."""
        self._operations = TableOperations(description, near, options.timeout_s)

    @property
    def batch_columns(self) -> Mapping[str, Column]:
        """The columns of a batch, with the dtype and shape of the value of one row (in a table of steps: one item)."""
        return self.schema if self.steps is None else self.steps.sampled

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {column}" for name, column in self.schema.items())
        return f"<Table {self.name!r} at {self.address}: {self.backend}, {self.capacity} rows of {columns}>"


def _joined(keys: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return keys[0] if len(keys) == 1 else np.concatenate(keys)


def _parts(count: int, most: int) -> list[slice]:
    """Split ``count`` items into slices of at most ``most`` items. Without items, return one empty slice."""
    return [slice(start, min(start + most, count)) for start in range(0, count, most)] or [slice(0, 0)]
