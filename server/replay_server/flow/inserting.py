"""Large inserts, whose rows are stored by a worker thread.

The thread stores the rows in spare slots of the ring. Then the event loop makes them all live in one step. In between,
no other insert or reset of the table runs (`replay_server.table.turns`), and other operations can only free up room. So
an insert that is allowed at the start is still allowed at the end.
"""

from __future__ import annotations

import asyncio

from replay_server.table.table import NewRows, Table, WriterStamp

INLINE_BYTES = 1 << 20
"""Maximum bytes of an insert that runs on the event loop. Storing 1 MiB into new pages of a file takes 1 ms in memory
and 8 ms on disk. The client's writers send at most this much at a time, unless a row is larger."""


def takes_long(table: Table, rows: NewRows) -> bool:
    """Whether to insert these rows in a worker thread."""
    return rows.count * table.config.schema.row_bytes > INLINE_BYTES


async def insert(table: Table, rows: NewRows, stamp: WriterStamp | None) -> range:
    """Insert rows like `Table.insert`, but in a worker thread. No other insert or reset may run at the same time.

    Raises:
        RequestError: as `Table.insert`.
    """
    repeated = table.find_repeat(rows, stamp)
    if repeated is not None:
        return repeated
    await asyncio.to_thread(table.reserve, rows.count)
    async with table.directory.storing_beside:
        await asyncio.to_thread(table.store, rows, stamp)
    return table.commit(rows, stamp)
