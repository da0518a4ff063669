"""CreateTable, DropTable, ListTables, DescribeTable, ResetTable."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from replay_proto.framing import Framed
from replay_proto.v1 import replay_pb2

from replay_server.catalog import Catalog
from replay_server.service import fields
from replay_server.table import Table
from replay_server.table_config import TableConfig


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
        """Serve these tables; clients on this host learn of the ``socket`` and where the tables' files are."""
        self._catalog = catalog
        self._describe = partial(describe, socket=socket)

    async def create(self, request: Framed[replay_pb2.CreateTableRequest]) -> bytes:
        """Make a table, or find the same one."""
        table, created = await self._catalog.create(TableConfig.from_proto(request.head.config))
        return replay_pb2.CreateTableResponse(table=self._describe(table), created=created).SerializeToString()

    async def drop(self, request: Framed[replay_pb2.DropTableRequest]) -> bytes:
        """Remove a table."""
        await self._catalog.drop(request.head.table, fields.table_uid(request.head.table_uid))
        return replay_pb2.DropTableResponse().SerializeToString()

    async def list(self, request: Framed[replay_pb2.ListTablesRequest]) -> bytes:
        """Describe all tables."""
        return replay_pb2.ListTablesResponse(tables=map(self._describe, self._catalog)).SerializeToString()

    async def describe(self, request: Framed[replay_pb2.DescribeTableRequest]) -> bytes:
        """Describe one table."""
        table = self._catalog.find(request.head.table)
        return replay_pb2.DescribeTableResponse(table=self._describe(table)).SerializeToString()

    async def reset(self, request: Framed[replay_pb2.ResetTableRequest]) -> bytes:
        """Empty a table."""
        table = self._catalog.find(request.head.table, fields.table_uid(request.head.table_uid))
        return replay_pb2.ResetTableResponse(removed=table.reset()).SerializeToString()
