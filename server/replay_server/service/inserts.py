"""Insert, and the stream on which a writer sends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from replay_proto.errors import FieldError
from replay_proto.framing import Framed
from replay_proto.v1 import replay_pb2

from replay_server.catalog import Catalog
from replay_server.service import fields
from replay_server.service.rpc import OpenStream
from replay_server.service.writer_streams import WriterStreams
from replay_server.table import NewRows, Table, WriterStamp

InsertMessage = replay_pb2.InsertRequest | replay_pb2.WriteRequest


class InsertHandlers:
    """How rows come in."""

    def __init__(self, catalog: Catalog) -> None:
        """Serve these tables."""
        self._catalog = catalog
        self._streams = WriterStreams()

    async def insert(self, request: Framed[replay_pb2.InsertRequest]) -> bytes:
        """Add rows."""
        table = self._catalog.find(request.head.table, fields.table_uid(request.head.table_uid))
        keys = await self._insert(table, request, request.head.writer_id)
        return replay_pb2.InsertResponse(keys=[_key_range(keys)], table_uid=table.uid).SerializeToString()

    @contextmanager
    def write_stream(
        self, opened: OpenStream
    ) -> Iterator[Callable[[Framed[replay_pb2.WriteRequest]], Awaitable[bytes]]]:
        """A writer's stream: each message adds rows."""
        stream = _WriteStream()

        async def write(request: Framed[replay_pb2.WriteRequest]) -> bytes:
            name, uid, writer_id = stream.identify(request.head)
            table = self._catalog.find(name, uid)
            self._streams.claim(opened, table.uid, writer_id)
            keys = await self._insert(table, request, writer_id)
            return replay_pb2.WriteResponse(
                keys=[_key_range(keys)], sequence=request.head.insertion.sequence, table_uid=table.uid
            ).SerializeToString()

        try:
            yield write
        finally:
            self._streams.release(opened)

    async def _insert(
        self,
        table: Table,
        request: Framed[replay_pb2.InsertRequest] | Framed[replay_pb2.WriteRequest],
        writer_id: bytes,
    ) -> range:
        insertion = request.head.insertion
        rows = _new_rows(table, insertion, request.rows)
        wait_s = fields.insert_wait_s(insertion)
        return await self._catalog.waiters.insert(table, rows, _stamp(writer_id, insertion.sequence), wait_s)


class _WriteStream:
    """What a writer's stream has said in its first message."""

    def __init__(self) -> None:
        self._first: replay_pb2.WriteRequest | None = None

    def identify(self, message: replay_pb2.WriteRequest) -> tuple[str, bytes, bytes]:
        """Name of the table, its uid and the writer, of the first message or repeated from it."""
        if self._first is None:
            fields.table_uid(message.table_uid)
            fields.writer_id(message.writer_id)
            self._first = replay_pb2.WriteRequest(
                table=message.table, table_uid=message.table_uid, writer_id=message.writer_id
            )
        for name in ("table", "table_uid", "writer_id"):
            first, now = getattr(self._first, name), getattr(message, name)
            if now and now != first:
                raise FieldError(name, f"what the stream's first message says ({first!r}), or nothing", repr(now))
        return self._first.table, self._first.table_uid, self._first.writer_id


def _new_rows(table: Table, insertion: replay_pb2.Insertion, rows: memoryview) -> NewRows:
    count = fields.row_count(insertion.row_count)
    return NewRows(
        columns=fields.columns(table.config.schema, rows, count),
        count=count,
        priorities=(
            fields.priorities(insertion.priorities, count, table.priority_limit) if insertion.priorities else None
        ),
        stream=insertion.stream,
        episode=insertion.episode,
    )


def _stamp(writer_id: bytes, sequence: int) -> WriterStamp | None:
    if not writer_id:
        if sequence:
            raise FieldError("sequence", "0 where there is no writer_id", str(sequence))
        return None
    return WriterStamp(fields.writer_id(writer_id), fields.sequence(sequence))


def _key_range(keys: range) -> replay_pb2.KeyRange:
    return replay_pb2.KeyRange(first=keys.start, count=len(keys))
