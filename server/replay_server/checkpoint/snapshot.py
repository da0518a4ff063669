"""Snapshots of tables at one moment: state, priorities and writers' records.

The rows of large tables are copied later, in a worker thread. This is possible because the thread can tell which rows
have been evicted and overwritten, and which were updated while it copied them. Rows that were updated after the
snapshot was taken have their new values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array

from replay_server.storage.rings import ring_copy
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_state import TableState
from replay_server.table.table import Table

TURN_BYTES = 32 << 20
"""Maximum bytes copied without a break, which takes about 10 ms. Other calls run before more is copied."""
COPIED_ON_LOOP_BYTES = 1 << 20
"""If all rows of a table have at most this many bytes, they are copied on the event loop, too."""


class SnapshotRows:
    """Rows of a table at one moment: copied immediately, or left in the ring while writes continue."""

    def __init__(self, table: Table, *, copied: bool) -> None:
        """Copy the rows now if ``copied``. Otherwise, keep the mapped files open even if the table is dropped."""
        self._table = table
        self._copier = table.directory.rows.copier()
        self._first = table.oldest
        self._copied: Sequence[Array] | None = None
        if copied:
            self._copied = self.copy(table.oldest, table.size)

    def copy(self, first_key: int, count: int) -> Sequence[Array]:
        """Copy consecutive rows; return ``dtype[count, elements]`` for each column, in the order of the table's files.

        Check `oldest_whole` afterwards: rows with smaller keys may have been overwritten during the copy.
        """
        if self._copied is not None:
            start = first_key - self._first
            return [column[start : start + count] for column in self._copied]
        return self._copier.copy(first_key, count)

    @property
    def oldest_whole(self) -> int:
        """The oldest key whose row has not been overwritten so far."""
        return 0 if self._copied is not None else self._table.write_horizon - self._table.config.slots


@dataclass
class TableSnapshot:
    """A table at one moment."""

    config: TableConfig
    uid: bytes
    state: TableState
    """The table's counters at that moment."""
    first_key: int
    """Key of the oldest row; advances past rows that were overwritten before they were copied."""
    priorities: NDArray[np.float64]
    """float64[rows at that moment]: oldest first."""
    writers: NDArray[np.uint8]
    """The writers' records."""
    rows: SnapshotRows
    """The table's rows at that moment."""

    @property
    def left_out(self) -> int:
        """Rows that were overwritten before they were copied."""
        return self.first_key - (self.state.inserted - len(self.priorities))

    @property
    def nbytes(self) -> int:
        """Upper bound on the bytes of the table's files in the checkpoint, which are smaller if rows are left out."""
        row_bytes = self.config.schema.row_bytes + self.config.link.row_bytes + self.priorities.itemsize
        return len(self.priorities) * row_bytes + self.writers.nbytes


class _Turn:
    """Limits the bytes copied before other calls run."""

    def __init__(self) -> None:
        self._left = TURN_BYTES

    async def make_room(self, size: int) -> None:
        """Count ``size`` bytes about to be copied; if they would exceed `TURN_BYTES`, let other calls run first."""
        if size > self._left:
            await asyncio.sleep(0)
            self._left = TURN_BYTES
        self._left -= size


async def take_snapshots(tables: Sequence[Table]) -> list[TableSnapshot]:
    """Take a snapshot of each table.

    If the snapshots copy at most `TURN_BYTES` together, all are of the same moment. Otherwise, other calls run in
    between. If one table has more than `TURN_BYTES` of priorities, they are copied in several steps, and rows that are
    evicted between these steps are left out.
    """
    turn = _Turn()
    return [await _take(table, turn) for table in tables]


async def _take(table: Table, turn: _Turn) -> TableSnapshot:
    size_bytes = table.size * table.config.schema.row_bytes
    copies = size_bytes <= COPIED_ON_LOOP_BYTES
    await turn.make_room(
        min(table.size * 8, TURN_BYTES) + table.directory.writers.file.bytes.nbytes + (size_bytes if copies else 0)
    )
    oldest, inserted = table.oldest, table.inserted
    snapshot = TableSnapshot(
        config=table.config,
        uid=table.uid,
        state=table.directory.header.state,
        first_key=oldest,
        priorities=np.empty(inserted - oldest),
        writers=table.directory.writers.file.bytes.copy(),
        rows=SnapshotRows(table, copied=copies),
    )
    at_once = TURN_BYTES // 8
    for start in range(0, len(snapshot.priorities), at_once):
        if start:
            await turn.make_room(TURN_BYTES)
        out = snapshot.priorities[start : start + at_once]
        out[:] = ring_copy(table.directory.priorities, (oldest + start) % table.config.slots, len(out))
        # Rows evicted since the first step have lost their priorities; they are the oldest ones.
        snapshot.first_key = min(max(snapshot.first_key, table.oldest), inserted)
    return snapshot
