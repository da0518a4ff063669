"""Periodically syncs all tables with checksums, several at a time, in worker threads.

Each table has its own schedule, so a slow table does not delay others. Calls do not wait for syncs. So data that was
acknowledged after the last sync point may only be in the page cache, which survives a killed server but not a power
loss.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from replay_server.catalog import Catalog
from replay_server.flow.background import Background
from replay_server.table.table import Table

log = logging.getLogger(__name__)


_LOOKS_PER_INTERVAL = 10
_LONGEST_LOOK_S = 0.02
_AT_ONCE = 16
"""Tables synced at the same time; their threads mostly wait for the disk, which handles concurrent syncs well."""
_MOST_UNSYNCED = 4
"""A table is synced early when unsynced rows fill 1/4 of its ring, because a power loss may lose both these rows and
the rows that they evicted."""


class Syncer:
    """Syncs the tables of a catalog that have checksums."""

    def __init__(self, catalog: Catalog, every_s: float, background: Background) -> None:
        """Start syncing each table every ``every_s`` seconds, in a loop in the background."""
        self._catalog = catalog
        self._every_s = every_s
        self._synced: dict[bytes, _Synced] = {}
        self._syncing: dict[bytes, asyncio.Task[None]] = {}
        # Separate threads, so that gathers and other work do not wait behind a slow disk.
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sync")
        background.repeat("syncing", self._look_once)

    async def close(self) -> None:
        """Wait for running syncs. The loop that starts them must have been stopped."""
        await asyncio.gather(*self._syncing.values())
        self._threads.shutdown()

    async def _look_once(self) -> None:
        self._look()
        await asyncio.sleep(min(self._every_s / _LOOKS_PER_INTERVAL, _LONGEST_LOOK_S))

    def _look(self) -> None:
        # A separate method, because local variables of the loop would keep a dropped table and its files alive.
        for table in self._catalog:
            if table.directory.is_checked and table.uid not in self._syncing and self._is_due(table):
                task = asyncio.create_task(self._sync_held(table.name, table.uid), name=f"sync-{table.name}")
                self._syncing[table.uid] = task
                task.add_done_callback(lambda _, uid=table.uid: self._syncing.pop(uid))  # type: ignore[misc]
        self._synced = {table.uid: self._synced[table.uid] for table in self._catalog if table.uid in self._synced}

    def _is_due(self, table: Table) -> bool:
        last = self._synced.get(table.uid)
        if last is None:
            return True
        if _state(table) == last.state:
            return False
        # After a failure, retry only at the regular interval.
        crowded = bool(last.state) and table.inserted - last.inserted >= table.config.slots // _MOST_UNSYNCED
        places = table.directory.rows.place_checksums
        awaited = bool(last.state) and places is not None and places.periods.is_awaited
        return time.monotonic() - last.at_s >= self._every_s or crowded or awaited

    async def _sync_held(self, name: str, uid: bytes) -> None:
        """Wait until no thread uses the table's files, then sync the table unless it has been dropped."""
        table = self._catalog.get(name)
        if table is None or table.uid != uid:
            return
        async with table.directory.in_use:
            if self._catalog.get(name) is table:
                await self._try_to_sync(table)

    async def _try_to_sync(self, table: Table) -> None:
        """Sync a table, and record the time and whether it succeeded."""
        state: tuple[object, ...] = _state(table)
        now, inserted = time.monotonic(), table.inserted
        try:
            await self._sync(table)
        except Exception as error:  # any kind: later syncs and other tables must continue
            table.figures.counts.failed_syncs += 1
            log.error(
                "table %s was not synced, a power loss would lose the last %d rows; retrying in %g s: %s",
                *(table.name, table.directory.unsynced, self._every_s, error),
                exc_info=not isinstance(error, OSError),
                extra={"table": table.name, "duration_s": round(time.monotonic() - now, 6)},
            )
            # Retry at the next due time, even without new changes.
            state, now = (), time.monotonic()
        self._synced[table.uid] = _Synced(now, inserted, state)

    async def _sync(self, table: Table) -> None:
        directory = table.directory
        if directory.has_to_be_stored_anew:
            log.info(
                "rewriting table %s: after a failed sync, its pages may be missing on disk",
                table.name,
                extra={"table": table.name},
            )
            async with directory.storing_beside:
                for _ in directory.store_anew():
                    await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(self._threads, directory.sync, directory.sync_point())


class _Synced(NamedTuple):
    at_s: float
    inserted: int
    state: tuple[object, ...]


def _state(table: Table) -> tuple[object, ...]:
    """Return a value that changes whenever the table stores something."""
    return (table.directory.header.state, table.figures.updates, table.directory.rows.updates)
