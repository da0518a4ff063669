"""Resets of tables with many rows, beside other calls.

A worker thread allocates what an empty table has in memory, so that a lack of memory refuses the reset before anything
has changed. The event loop then removes all rows in one short step. After that, a worker thread clears the stored
priorities and releases the memory of the old rows. No insert runs from the beginning to the end; other calls find the
old rows before that step, and an empty table after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from replay_server.backends import LiveRows
from replay_server.table.table import Contents, Table


async def reset(table: Table, removed: Callable[[], None]) -> int:
    """Reset a table like `Table.reset`. No insert into the table may run at the same time.

    ``removed`` is called when the rows are gone, before any other call runs.
    """
    blank = await asyncio.to_thread(table.blank)
    live = table.live
    old = [table.begin_anew(blank)]
    removed()
    await asyncio.to_thread(_clear, table, live, old)
    return live.size


def _clear(table: Table, live: LiveRows, old: list[Contents]) -> None:
    table.forget(live)
    old.clear()  # the last references: unmapping the memory here does not block the event loop
