"""Calls that wait for a table to have rows."""

from __future__ import annotations

import asyncio
import time

from replay_server import errors
from replay_server.table import Table


class RowWaiters:
    """Lets calls wait until a table has rows, is dropped, or the server closes."""

    def __init__(self) -> None:
        """Begin with nobody waiting."""
        self._changes: dict[bytes, asyncio.Event] = {}
        self._closing = False

    async def wait(self, table: Table, wait_s: float, deadline: float) -> None:
        """Return once something has changed for a table that has no rows.

        Args:
            table: the table; look it up and look at it again afterwards.
            wait_s: how long the call waits in all, for the refusal.
            deadline: when that is over, by `time.monotonic`.

        Raises:
            RequestError: WAITED_TOO_LONG, or SHUTTING_DOWN.
        """
        table.waiting += 1
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                if not self._closing:
                    await self._changes.setdefault(table.uid, asyncio.Event()).wait()
        except TimeoutError:
            raise errors.waited_too_long(table.name, wait_s) from None
        finally:
            table.waiting -= 1
        if self._closing:
            raise errors.shutting_down()

    def wake(self, table: Table) -> None:
        """The table has rows, or is gone."""
        change = self._changes.pop(table.uid, None)
        if change is not None:
            change.set()

    def close(self) -> None:
        """Send everybody away; nobody waits from now on."""
        self._closing = True
        for change in self._changes.values():
            change.set()
        self._changes.clear()
