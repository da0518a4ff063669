"""What has to be taken of a table at one moment: its state, the priorities of its rows, and its writers' records.

The rows themselves are copied afterwards, beside the loop: a row never changes while it is live, and its slot is
overwritten only by one that comes ``slots`` keys later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array

from replay_server.storage.row_store import LINK_BYTES
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_state import TableState
from replay_server.table.table import Table

TURN_BYTES = 32 << 20
"""So much is copied in one turn of the event loop, in about 10 ms. What is more follows in later turns."""
INLINE_BYTES = 1 << 20
"""Tables whose rows are no more than this are copied wholly in that turn."""


class RowSource(Protocol):
    """Where rows are copied from."""

    def copy(self, first_key: int, count: int) -> Sequence[Array]:
        """Copies of consecutive rows: ``dtype[count, elements]`` per column, in the order of the table's files."""

    @property
    def oldest_whole(self) -> int:
        """No row from this key on has been overwritten so far."""


class LiveRing:
    """The ring of a table that goes on being written to."""

    def __init__(self, table: Table) -> None:
        """Hold on to its mapped files: a table that is dropped meanwhile is copied all the same."""
        self._table = table
        self._rings = table.directory.rows.values()
        self._slots = table.config.slots

    def copy(self, first_key: int, count: int) -> Sequence[Array]:
        """Copies of consecutive rows; `oldest_whole`, asked afterwards, tells which of them are whole."""
        return [ring_copy(ring, first_key % self._slots, count) for ring in self._rings]

    @property
    def oldest_whole(self) -> int:
        """No row from this key on has been overwritten so far."""
        return self._table.write_horizon - self._slots


class CopiedRows:
    """Rows of a small table, copied at once."""

    def __init__(self, ring: LiveRing, first_key: int, count: int) -> None:
        """Copy them."""
        self._first = first_key
        self._columns = ring.copy(first_key, count)

    def copy(self, first_key: int, count: int) -> Sequence[Array]:
        """Views of consecutive rows."""
        start = first_key - self._first
        return [column[start : start + count] for column in self._columns]

    @property
    def oldest_whole(self) -> int:
        """All are whole."""
        return 0


@dataclass
class TableSnapshot:
    """A table at one moment."""

    config: TableConfig
    uid: bytes
    state: TableState
    """What it was besides its rows, at that moment."""
    first_key: int
    """Oldest row; it moves on past rows that were overwritten before they were copied."""
    priorities: NDArray[np.float64]
    """float64[rows at that moment]: oldest first."""
    writers: NDArray[np.uint8]
    """The writers' records."""
    rows: RowSource
    """Where the rows are."""

    @property
    def left_out(self) -> int:
        """Rows that were overwritten before they were copied."""
        return self.first_key - (self.state.inserted - len(self.priorities))

    @property
    def nbytes(self) -> int:
        """Bytes of its files at most, for they lack what is left out."""
        row_bytes = self.config.schema.row_bytes + LINK_BYTES + self.priorities.itemsize
        return len(self.priorities) * row_bytes + self.writers.nbytes


class _Turn:
    """Counts what was copied in this turn of the loop, and ends it when that is enough."""

    def __init__(self) -> None:
        self._left = TURN_BYTES

    async def make_room(self, size: int) -> None:
        """Let others run first, if ``size`` more bytes are too many for this turn."""
        if size > self._left:
            await asyncio.sleep(0)
            self._left = TURN_BYTES
        self._left -= size


async def take_snapshots(tables: Sequence[Table]) -> list[TableSnapshot]:
    """Take what has to be taken at once: all tables at one moment if that is at most `TURN_BYTES`, else one by one.

    The priorities of a table with more than `TURN_BYTES` of them are taken over several turns, each of them as it stood
    at its own moment; rows evicted in between are left out.
    """
    turn = _Turn()
    return [await _take(table, turn) for table in tables]


async def _take(table: Table, turn: _Turn) -> TableSnapshot:
    size_bytes = table.size * table.config.schema.row_bytes
    copies = size_bytes <= INLINE_BYTES
    await turn.make_room(
        min(table.size * 8, TURN_BYTES) + table.directory.writers.content.nbytes + (size_bytes if copies else 0)
    )
    oldest, inserted = table.oldest, table.inserted
    ring = LiveRing(table)
    snapshot = TableSnapshot(
        config=table.config,
        uid=table.uid,
        state=table.directory.header.state,
        first_key=oldest,
        priorities=np.empty(inserted - oldest),
        writers=table.directory.writers.content.copy(),
        rows=CopiedRows(ring, oldest, inserted - oldest) if copies else ring,
    )
    at_once = TURN_BYTES // 8
    for start in range(0, len(snapshot.priorities), at_once):
        if start:
            await turn.make_room(TURN_BYTES)
        out = snapshot.priorities[start : start + at_once]
        out[:] = ring_copy(table.directory.priorities, (oldest + start) % table.config.slots, len(out))
        # Evicted rows have lost their priorities, and of what was copied before they are the oldest.
        snapshot.first_key = min(max(snapshot.first_key, table.oldest), inserted)
    return snapshot


def ring_copy(ring: Array, start: int, count: int) -> Array:
    """A copy of ``count`` values of a ring from slot ``start`` on, around its end."""
    before_end = min(len(ring) - start, count)
    out = np.empty((count, *ring.shape[1:]), ring.dtype)
    out[:before_end] = ring[start : start + before_end]
    out[before_end:] = ring[: count - before_end]
    return out
