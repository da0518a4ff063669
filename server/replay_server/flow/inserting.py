"""Inserts of many bytes, beside the event loop: others are served meanwhile.

Rows are stored in a worker thread, into slots that the ring has to spare, and become live on the loop, all at once.
Nobody else inserts into the table meanwhile (`replay_server.table.turns`), and what else happens to it only makes room,
so an insert that was allowed stays allowed. The exception is a reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from replay_server import errors
from replay_server.table.table import NewRows, Table, WriterStamp

INLINE_BYTES = 1 << 20
"""Up to this much is copied on the event loop; more, in a worker thread. Where the pages of the table's files are new,
a MiB takes 1 ms in memory and 8 ms on a disk; a writer's block has no more."""


def takes_long(table: Table, rows: NewRows) -> bool:
    """Whether others should be served while these rows are inserted."""
    return rows.count * table.config.schema.row_bytes > INLINE_BYTES


def insert(table: Table, rows: NewRows, stamp: WriterStamp | None) -> Coroutine[Any, Any, range]:
    """Insert rows as `Table.insert` does, while others are served. Nobody else may insert meanwhile.

    Raises:
        RequestError: as `Table.insert`; TABLE_RESET if the table was reset meanwhile and its gate no longer allows
            the insert.
    """
    # Counted now, since the gate was asked now: a task begins to run only in a later turn of the loop.
    return _insert(table, rows, stamp, table.resets)


async def _insert(table: Table, rows: NewRows, stamp: WriterStamp | None, resets: int) -> range:
    repeated = table.find_repeat(stamp)
    if repeated is not None:
        return repeated
    await asyncio.to_thread(table.reserve, rows.count)
    async with table.directory.storing_beside:
        await asyncio.to_thread(table.store, rows, stamp)
    if table.resets != resets and table.gate is not None and not table.gate.insert_allowed(rows.count):
        table.erase_stored(rows.count)
        raise errors.table_reset(table.name)
    return table.commit(rows, stamp)
