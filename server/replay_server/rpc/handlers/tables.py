"""CreateTable, DropTable, ListTables, DescribeTable, ResetTable."""

from __future__ import annotations

from pathlib import Path

from replay_proto.access.tokens import Right
from replay_proto.framing import Framed
from replay_proto.v1 import replay_pb2

from replay_server import errors
from replay_server.auth.caller import Caller
from replay_server.catalog import Catalog
from replay_server.rpc.call import Call
from replay_server.rpc.handlers import fields
from replay_server.storage.table_config import TableConfig
from replay_server.table.table import Table


def describe(table: Table, *, socket: Path | None = None) -> replay_pb2.TableDescription:
    """A table as it stands; with a ``socket`` for clients on this host, where that and its files are."""
    return replay_pb2.TableDescription(
        config=table.config.to_proto(),
        uid=table.uid,
        size=table.size,
        inserted=table.inserted,
        slots=table.config.slots,
        row_bytes=table.config.schema.row_bytes,
        directory=str(table.directory.folder.absolute()) if socket else "",
        socket=str(socket.absolute()) if socket else "",
    )


class TableHandlers:
    """What is done with tables as a whole."""

    def __init__(self, catalog: Catalog, *, socket: Path | None) -> None:
        """Serve these tables.

        Args:
            catalog: the tables.
            socket: clients on this host learn of it, and where the tables' files are; None: they do not.
        """
        self._catalog = catalog
        self._socket = socket

    async def create(self, request: Framed[replay_pb2.CreateTableRequest], call: Call) -> bytes:
        """Make a table, or find the same one."""
        config = request.head.config
        self._catalog.bounds.check_columns(len(config.columns))  # before so many are looked at
        table, created = await self._catalog.create(TableConfig.from_proto(config), call.caller.quota())
        description = self._describe(table, call.caller)
        return replay_pb2.CreateTableResponse(table=description, created=created).SerializeToString()

    async def drop(self, request: Framed[replay_pb2.DropTableRequest], _call: Call) -> bytes:
        """Remove a table."""
        await self._catalog.drop(request.head.table, fields.table_uid(request.head.table_uid))
        return replay_pb2.DropTableResponse().SerializeToString()

    async def list(self, request: Framed[replay_pb2.ListTablesRequest], call: Call) -> bytes:
        """Describe all tables that the caller may read."""
        return replay_pb2.ListTablesResponse(
            tables=[
                self._describe(table, call.caller)
                async for table in self._catalog.in_turns()
                if call.caller.may(Right.READ, table.name)
            ]
        ).SerializeToString()

    async def describe(self, request: Framed[replay_pb2.DescribeTableRequest], call: Call) -> bytes:
        """Describe one table."""
        table = self._catalog.find(request.head.table)
        return replay_pb2.DescribeTableResponse(table=self._describe(table, call.caller)).SerializeToString()

    async def reset(self, request: Framed[replay_pb2.ResetTableRequest], _call: Call) -> bytes:
        """Empty a table."""
        table = self._catalog.find(request.head.table, fields.table_uid(request.head.table_uid))
        removed = table.reset()
        self._catalog.waiters.send_away(table, errors.table_reset)
        return replay_pb2.ResetTableResponse(removed=removed).SerializeToString()

    def _describe(self, table: Table, caller: Caller) -> replay_pb2.TableDescription:
        """A table as it stands; who may read it learns where its files are, if rows may be copied from them."""
        is_offered = table.draws.copyable and caller.may(Right.READ, table.name)
        return describe(table, socket=self._socket if is_offered else None)
