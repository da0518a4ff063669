"""Handlers of UpdatePriorities and UpdateRows. A learner's stream carries both kinds of updates, too."""

from __future__ import annotations

import asyncio
from typing import Final

from replay_proto.framing import Framed
from replay_proto.v1 import replay_pb2

from replay_server.catalog import Catalog
from replay_server.flow.leases import Lease
from replay_server.flow.turns import LONG_ROWS
from replay_server.rpc.call import Call
from replay_server.rpc.handlers import fields

_SYNC_LOOK_S: Final = 0.005
"""Seconds between two looks whether the sync has ended for which an update waits, with ``--durability power``."""


class UpdatingHandlers:
    """Handles updates of rows that exist."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def priorities(self, request: Framed[replay_pb2.UpdatePrioritiesRequest], call: Call) -> bytes:
        """Set priorities."""
        message = request.head
        lease = self._catalog.lease(message.table, fields.table_uid(message.table_uid, required=True))
        result = await self.set_priorities(call, lease, message.update)
        return replay_pb2.UpdatePrioritiesResponse(result=result).SerializeToString()

    async def rows(self, request: Framed[replay_pb2.UpdateRowsRequest], call: Call) -> bytes:
        """Write mutable columns again."""
        message = request.head
        lease = self._catalog.lease(message.table, fields.table_uid(message.table_uid, required=True))
        result = await self.write_rows(call, lease, message.update, request.rows)
        return replay_pb2.UpdateRowsResponse(result=result).SerializeToString()

    async def set_priorities(
        self, call: Call, lease: Lease, update: replay_pb2.PriorityUpdate
    ) -> replay_pb2.UpdateResult:
        """Check and apply an update of priorities."""
        keys = fields.keys(update.keys)
        self._catalog.bounds.check_rows(len(keys))
        table = lease.table
        limit = table.priority_limit
        priorities = fields.priorities(update.priorities, len(keys), limit)
        if len(keys) > LONG_ROWS and await self._catalog.long_calls.turn(call.caller.identity):
            call.caller.check_valid()
            table = lease.table
        if update.HasField("others_largest"):
            others = fields.priority("update.others_largest", update.others_largest, limit)
            table.others_largest_priority = others
        updated, stale = table.update(keys, priorities)
        return replay_pb2.UpdateResult(updated=updated, stale=stale)

    async def write_rows(
        self, call: Call, lease: Lease, update: replay_pb2.RowUpdate, rows: memoryview
    ) -> replay_pb2.UpdateResult:
        """Check and apply an update of mutable columns."""
        keys = fields.keys(update.keys)
        self._catalog.bounds.check_rows(len(keys))
        columns = fields.columns(fields.mutable(update.columns, lease.table.config.schema), rows, len(keys))
        if len(keys) > LONG_ROWS and await self._catalog.long_calls.turn(call.caller.identity):
            call.caller.check_valid()
        while not lease.table.directory.rows.may_update(keys):
            await asyncio.sleep(_SYNC_LOOK_S)
            call.caller.check_valid()
        self._catalog.check_stores()
        updated, stale = lease.table.update_rows(keys, columns)
        return replay_pb2.UpdateResult(updated=updated, stale=stale)
