"""Writes tables with checksums to the disk now and then, beside the event loop.

No call waits for this: what was acknowledged since the last sync point is in the page cache, which a killed server does
not take away, but a loss of power does.
"""

from __future__ import annotations

import asyncio
import logging
import time

from replay_server.catalog import Catalog
from replay_server.table import Table

log = logging.getLogger(__name__)


_LOOKS_PER_INTERVAL = 10
_LONGEST_LOOK_S = 0.02
_MOST_UNSYNCED = 4
"""A table is synced early once this part of its ring is new: a loss of power takes as much at both ends."""


class Syncer:
    """Syncs the tables of a catalog that have checksums."""

    def __init__(self, catalog: Catalog, every_s: float) -> None:
        """Begin; `close` ends it.

        Args:
            catalog: the tables.
            every_s: seconds from one sync of a table to its next one.
        """
        self._catalog = catalog
        self._every_s = every_s
        self._synced: dict[bytes, _Synced] = {}
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="syncer")

    async def close(self) -> None:
        """Begin no more, and wait for the one that is being done."""
        self._closing.set()
        await self._task

    async def _run(self) -> None:
        while not self._closing.is_set():
            await self._look()
            try:
                await asyncio.wait_for(self._closing.wait(), min(self._every_s / _LOOKS_PER_INTERVAL, _LONGEST_LOOK_S))
            except TimeoutError:
                continue

    async def _look(self) -> None:
        # By name, and in a call of its own: a variable that outlived it would keep a dropped table, and its space.
        for name in [table.name for table in self._catalog if table.directory.is_checked]:
            table = self._catalog.get(name)
            if table is not None:
                async with self._catalog.hold(table):
                    await self._sync_if_due(table)
        self._synced = {table.uid: self._synced[table.uid] for table in self._catalog if table.uid in self._synced}

    async def _sync_if_due(self, table: Table) -> None:
        last = self._synced.get(table.uid)
        state: tuple[object, ...] = _state(table)
        now = time.monotonic()
        if last is not None:
            # A disk that refuses is not asked more often than it has to be.
            crowded = bool(last.state) and table.inserted - last.inserted >= table.config.slots // _MOST_UNSYNCED
            if state == last.state or (now - last.at_s < self._every_s and not crowded):
                return
        inserted = table.inserted
        try:
            await self._sync(table)
        except Exception as error:  # of whatever kind: the next sync, and those of other tables, have to go on
            table.failed_syncs += 1
            log.error(
                "table %s was not synced, a loss of power would take the last %d rows; tried again in %g s: %s",
                *(table.name, table.directory.unsynced, self._every_s, error),
                exc_info=not isinstance(error, OSError),
            )
            # Again when it is due again, though nothing more may have been stored.
            state, now = (), time.monotonic()
        self._synced[table.uid] = _Synced(now, inserted, state)

    async def _sync(self, table: Table) -> None:
        """Sync a table.

        Raises:
            OSError: if the disk refuses.
        """
        directory = table.directory
        if directory.has_to_be_stored_anew:
            log.info(
                "table %s is stored anew: after a sync that failed, nothing is known to be on the disk", table.name
            )
            async with directory.storing_beside:
                for _ in directory.store_anew():
                    await asyncio.sleep(0)
        await asyncio.to_thread(directory.sync, directory.sync_point())


class _Synced:
    def __init__(self, at_s: float, inserted: int, state: tuple[object, ...]) -> None:
        self.at_s = at_s
        self.inserted = inserted
        self.state = state


def _state(table: Table) -> tuple[object, ...]:
    """Differs whenever something was stored."""
    return (table.directory.header.state, table.priorities_updated.total)
