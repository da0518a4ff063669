"""Inserts of many rows, beside the event loop: others are served meanwhile.

Rows are stored in a worker thread, as many at a time as the ring has slots to spare. They become live on the loop, at
most `MOST_ROWS_AT_ONCE` at a time. Nobody else inserts into the table meanwhile (`replay_server.turns`), and what else
happens to it only makes room, so an insert that was allowed stays allowed. The exception is a reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from replay_proto.inserts import MOST_ROWS_AT_ONCE

from replay_server import errors
from replay_server.table import NewRows, Table, WriterStamp

INLINE_BYTES = 1 << 20
"""Up to this much is copied on the event loop; more, in a worker thread. Where the pages of the table's files are new,
a MiB takes 1 ms in memory and 8 ms on a disk; a writer's block has no more."""


def takes_long(table: Table, rows: NewRows) -> bool:
    """Whether others should be served while these rows are inserted."""
    return rows.count > MOST_ROWS_AT_ONCE or _nbytes(table, rows) > INLINE_BYTES


def insert(
    table: Table, rows: NewRows, stamp: WriterStamp | None, committed: Callable[[], None]
) -> Coroutine[Any, Any, range]:
    """Insert rows as `Table.insert` does, while others are served. Nobody else may insert meanwhile.

    Args:
        table: the table.
        rows: what to add.
        stamp: whose insert it is.
        committed: called whenever rows have become live.

    Raises:
        RequestError: as `Table.insert`; TABLE_RESET if the table was reset meanwhile and its gate no longer allows
            what is left of the insert.
    """
    # Counted now, since the gate was asked now: a task begins to run only in a later turn of the loop.
    return _insert(table, rows, stamp, committed, table.resets)


async def _insert(
    table: Table, rows: NewRows, stamp: WriterStamp | None, committed: Callable[[], None], resets: int
) -> range:
    repeated = table.find_repeat(rows.count, stamp)
    if repeated is not None:
        return repeated
    first, priority = table.inserted, None
    await asyncio.to_thread(table.reserve, rows.count)
    turn = _Turn()
    for stretch in rows.parts(table.config.slack):
        size = _nbytes(table, stretch)
        if size > INLINE_BYTES:
            async with table.directory.storing_beside:
                await asyncio.to_thread(table.store, stretch, stamp)
        else:
            await turn.make_room(size / INLINE_BYTES)
            table.store(stretch, stamp)
        end = table.inserted + stretch.count
        try:
            for part in stretch.parts(MOST_ROWS_AT_ONCE):
                await turn.make_room(part.count / MOST_ROWS_AT_ONCE)
                if table.resets != resets:
                    _check_still_allowed(table, first + rows.count - table.inserted)
                priority = priority or table.new_priority
                table.commit(part, priority, stamp)
                committed()
        except BaseException:
            table.erase_stored(end - table.inserted)
            raise
    return range(first, table.inserted)


def _nbytes(table: Table, rows: NewRows) -> int:
    return rows.count * table.config.schema.row_bytes


def _check_still_allowed(table: Table, rows: int) -> None:
    """Refuse the rest of an insert that is not allowed any more. The reset has taken what was inserted before."""
    if table.gate is not None and not table.gate.insert_allowed(rows):
        raise errors.table_reset(table.name)


class _Turn:
    """Counts what was done in this turn of the loop, and ends it when that is enough."""

    def __init__(self) -> None:
        self._left = 1.0

    async def make_room(self, part: float) -> None:
        """Let others run first, if too little of the turn is left for such a part of one."""
        if part > self._left:
            await asyncio.sleep(0)
            self._left = 1.0
        self._left -= part
