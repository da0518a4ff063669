"""Handlers of CreateTable, DropTable, ListTables, DescribeTable and ResetTable."""

from __future__ import annotations

from pathlib import Path

from replay_proto.access.tokens import Right
from replay_proto.errors import FieldError
from replay_proto.framing import Framed
from replay_proto.v1 import replay_pb2

from replay_server import errors
from replay_server.auth import Caller
from replay_server.backends import BACKENDS
from replay_server.catalog import Catalog
from replay_server.rpc.call import Call
from replay_server.rpc.handlers import fields
from replay_server.storage.table_config import QUEUE, TableConfig
from replay_server.table.table import Table


def describe(table: Table, *, socket: Path | None = None, owner_id: bytes = b"") -> replay_pb2.TableDescription:
    """Describe a table. If there is a ``socket``, include what clients on this host need.

    This is the path of the socket, the table's directory, and the id of this server, ``owner_id``.
    """
    return replay_pb2.TableDescription(
        config=table.config.message,
        uid=table.uid,
        size=table.size,
        inserted=table.inserted,
        slots=table.config.slots,
        row_bytes=table.config.schema.row_bytes,
        directory=str(table.directory.folder.absolute()) if socket else "",
        socket=str(socket.absolute()) if socket else "",
        owner_id=owner_id if socket else b"",
    )


class TableHandlers:
    """Handlers of RPCs on whole tables."""

    def __init__(self, catalog: Catalog, *, socket: Path | None) -> None:
        """Serve these tables. With a ``socket``, descriptions include its path and the path of the table's files."""
        self._catalog = catalog
        self._socket = socket

    async def create(self, request: Framed[replay_pb2.CreateTableRequest], call: Call) -> bytes:
        """Create a table, or find an existing one with the same config."""
        config = request.head.config
        self._catalog.bounds.check_columns(len(config.columns))  # before processing them
        if request.head.shards_version != self._catalog.shards.version:
            raise errors.shards_changed(self._catalog.shards.version, request.head.shards_version)
        self._check_divisible(config)
        table, created = await self._catalog.create(
            TableConfig.from_proto(config), call.caller.token(), client=call.caller.identity
        )
        description = self._describe(table, call.caller)
        return replay_pb2.CreateTableResponse(table=description, created=created).SerializeToString()

    async def drop(self, request: Framed[replay_pb2.DropTableRequest], call: Call) -> bytes:
        """Remove a table."""
        uid = fields.table_uid(request.head.table_uid)
        await self._catalog.drop(request.head.table, uid, client=call.caller.identity)
        return replay_pb2.DropTableResponse().SerializeToString()

    async def list(self, request: Framed[replay_pb2.ListTablesRequest], call: Call) -> bytes:
        """Describe all tables that the caller may read."""
        return replay_pb2.ListTablesResponse(
            tables=[
                self._describe(table, call.caller)
                async for table in self._catalog.in_turns()
                if call.caller.may(Right.READ, table.name)
            ],
            shards=self._catalog.shards.to_proto(),
        ).SerializeToString()

    async def describe(self, request: Framed[replay_pb2.DescribeTableRequest], call: Call) -> bytes:
        """Describe one table."""
        table = self._catalog.find(request.head.table)
        description = self._describe(table, call.caller)
        return replay_pb2.DescribeTableResponse(
            table=description, shards=self._catalog.shards.to_proto()
        ).SerializeToString()

    async def reset(self, request: Framed[replay_pb2.ResetTableRequest], call: Call) -> bytes:
        """Reset a table."""
        lease = self._catalog.lease(request.head.table, fields.table_uid(request.head.table_uid))
        removed = await self._catalog.reset(lease, call.caller)
        return replay_pb2.ResetTableResponse(removed=removed).SerializeToString()

    def _check_divisible(self, config: replay_pb2.TableConfig) -> None:
        """Refuse a shard of a table that cannot be on several servers, should a client not have done so."""
        shards, backend = self._catalog.shards.current, config.backend.name
        servers = 0 if shards is None else len(shards.in_use)
        is_shard = config.whole_capacity or config.whole_uid or config.whole_shards
        if is_shard and servers > 1 and (backend == QUEUE or (backend in BACKENDS and BACKENDS[backend].is_ranked)):
            expected = f"another one than {backend!r} for a table on {servers} servers; use one server or 'sum_tree'"
            raise FieldError("backend", expected, repr(backend))

    def _describe(self, table: Table, caller: Caller) -> replay_pb2.TableDescription:
        """Describe a table; include the path of its files only if the caller may read the table and copy its rows."""
        is_offered = table.draws.copyable and caller.may(Right.READ, table.name)
        made = describe(table, socket=self._socket if is_offered else None, owner_id=self._catalog.owner.id)
        made.max_rows_per_call = self._catalog.bounds.max_rows_per_call
        return made
