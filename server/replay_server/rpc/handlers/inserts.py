"""Handlers of Insert and Write, one live stream for each writer, and advice on how often writers send."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Final

from replay_proto.errors import FieldError
from replay_proto.framing import Framed
from replay_proto.v1 import replay_pb2

from replay_server import errors
from replay_server.catalog import Catalog
from replay_server.flow.leases import Lease
from replay_server.flow.turns import LONG_ROWS
from replay_server.rpc.call import Call, Stream
from replay_server.rpc.handlers import fields
from replay_server.table.table import NewRows, Table, WriterStamp

Place = tuple[bytes, bytes]
"""A table's uid and a writer's id."""


class WriterStreams:
    """The live stream of each writer, per table."""

    def __init__(self) -> None:
        self._streams: dict[Place, Stream] = {}
        self._places: dict[Stream, Place] = {}

    def __len__(self) -> int:
        """Number of writers with a live stream."""
        return len(self._streams)

    def claim(self, stream: Stream, table_uid: bytes, writer_id: bytes) -> None:
        """Make ``stream`` the live stream of a writer to a table.

        End the writer's earlier stream to this table, if any. If ``stream`` was the live stream of another writer or
        table before, release that claim.
        """
        place = (table_uid, writer_id)
        if self._places.get(stream) == place:
            return
        if stream not in self._places:
            stream.when_closed(lambda: self.release(stream))
        self.release(stream)
        earlier = self._streams.get(place)
        if earlier is not None:
            self.release(earlier)
            earlier.end(errors.writer_superseded())
        self._streams[place], self._places[stream] = stream, place

    def release(self, stream: Stream) -> None:
        """Release a stream's claim, if any."""
        place = self._places.pop(stream, None)
        if place is not None:
            del self._streams[place]


MESSAGES_PER_S: Final = 500.0
"""Messages per second that all writers together should send. Handling them takes about a fifth of a core."""


class WriterPace:
    """Advises writers how long to collect rows before they send them.

    The advised time is proportional to the number of writers that were active in the last second or two.
    """

    def __init__(self) -> None:
        self._second = 0
        self._active: set[Hashable] = set()  # in this second
        self._active_before = 0  # number in the previous second

    def delay_s(self, writer: Hashable, now_s: float) -> float:
        """Record a message of a writer; return for how many seconds it should collect rows for its next message."""
        second = int(now_s)
        if second != self._second:
            self._active_before = len(self._active) if second == self._second + 1 else 0
            self._active.clear()
            self._second = second
        self._active.add(writer)
        return max(self._active_before, len(self._active)) / MESSAGES_PER_S


InsertMessage = replay_pb2.InsertRequest | replay_pb2.WriteRequest


class InsertHandlers:
    """Handlers of inserts."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._streams = WriterStreams()
        self._pace = WriterPace()

    async def insert(self, request: Framed[replay_pb2.InsertRequest], call: Call) -> bytes:
        """Add rows."""
        lease = self._catalog.lease(request.head.table, fields.table_uid(request.head.table_uid))
        uid = lease.table.uid
        keys = await self._insert(call, lease, request, request.head.writer_id)
        return replay_pb2.InsertResponse(keys=[_key_range(keys)], table_uid=uid).SerializeToString()

    async def write(self, request: Framed[replay_pb2.WriteRequest], call: Call) -> bytes:
        """Add rows from a writer's stream."""
        head, stream = request.head, call.stream
        name = stream.constant("table", head.table)
        uid = stream.constant("table_uid", fields.table_uid(head.table_uid))
        writer_id = fields.writer_id(stream.constant("writer_id", head.writer_id))
        lease = self._catalog.lease(name, uid)
        table = lease.table
        self._streams.claim(stream, table.uid, writer_id)
        client = stream.client(table, call.caller, "writer")
        inserted = table.inserted
        keys = await self._insert(call, lease, request, writer_id)
        if keys.start >= inserted:  # Otherwise, this is a retry, and the rows were counted the first time.
            client.rows += len(keys)
        return replay_pb2.WriteResponse(
            keys=[_key_range(keys)],
            sequence=head.insertion.sequence,
            table_uid=table.uid,
            delay_s=self._pace.delay_s(writer_id, time.monotonic()),
            shards_version=self._catalog.shards.version,
        ).SerializeToString()

    async def _insert(
        self,
        call: Call,
        lease: Lease,
        request: Framed[replay_pb2.InsertRequest] | Framed[replay_pb2.WriteRequest],
        writer_id: bytes,
    ) -> range:
        insertion = request.head.insertion
        rows = _new_rows(lease.table, insertion, request.rows)
        wait_s = fields.insert_wait_s(insertion)
        if rows.count > LONG_ROWS and await self._catalog.long_calls.turn(call.caller.identity):
            call.caller.check_valid()
        self._catalog.check_stores()
        stamp = _stamp(writer_id, insertion.sequence)
        keys = await lease.admission.insert(call.caller, rows, stamp, wait_s)
        self._catalog.check_stores()  # otherwise, rows that are lost with the server would be acknowledged
        return keys


def _new_rows(table: Table, insertion: replay_pb2.Insertion, rows: memoryview) -> NewRows:
    count = fields.at_least("row_count", 1, insertion.row_count)
    runs = fields.runs(insertion, count, of_steps=table.config.steps is not None)
    number = table.priorities_of(count, runs)
    return NewRows(
        columns=fields.columns(table.config.schema, rows, count),
        count=count,
        priorities=(
            fields.priorities(insertion.priorities, number, table.priority_limit) if insertion.priorities else None
        ),
        runs=runs,
    )


def _stamp(writer_id: bytes, sequence: int) -> WriterStamp | None:
    if not writer_id:
        if sequence:
            raise FieldError("sequence", "0 where there is no writer_id", str(sequence))
        return None
    sequence = fields.at_least("sequence", 1, sequence, " where there is a writer_id")
    return WriterStamp(fields.writer_id(writer_id), sequence)


def _key_range(keys: range) -> replay_pb2.KeyRange:
    return replay_pb2.KeyRange(first=keys.start, count=len(keys))
