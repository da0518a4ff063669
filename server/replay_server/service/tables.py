"""CreateTable, DropTable, ListTables, DescribeTable, ResetTable."""

from __future__ import annotations

from functools import partial

from replay_proto.framing import Framed
from replay_proto.v1 import replay_pb2

from replay_server import errors
from replay_server.catalog import Catalog
from replay_server.service import fields
from replay_server.table import Table
from replay_server.table_config import TableConfig


def describe(table: Table, *, same_host: bool = False) -> replay_pb2.TableDescription:
    """A table as it stands; with ``same_host``, where its files are."""
    return replay_pb2.TableDescription(
        config=table.config.to_proto(),
        uid=table.uid,
        size=table.size,
        inserted=table.inserted,
        slots=table.config.slots,
        row_bytes=table.config.schema.row_bytes,
        directory=str(table.directory.folder.absolute()) if same_host and not table.is_queue else "",
    )


class TableHandlers:
    """What is done with tables as a whole."""

    def __init__(self, catalog: Catalog, *, same_host: bool) -> None:
        """Serve these tables; ``same_host`` says whether clients on this host learn where their files are."""
        self._catalog = catalog
        self._describe = partial(describe, same_host=same_host)

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
        removed = table.reset()
        self._catalog.waiters.send_away(table, errors.table_reset)
        return replay_pb2.ResetTableResponse(removed=removed).SerializeToString()
