"""Waiting on an event loop, for a change or for a turn."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Changes:
    """Wakes up all tasks that wait for a change of some state. A canceled wait has no effect."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake up all waiting tasks."""
        self._event.set()
        self._event.clear()

    async def wait(self, limit_s: float | None = None) -> None:
        """Wait for the next `notify`, or for ``limit_s`` seconds; None: no limit."""
        if limit_s is None:
            await self._event.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._event.wait()


class Turns:
    """Lets one task per iteration of the event loop begin its work, so that many simultaneous calls do not block it."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def take(self) -> None:
        """Wait for a turn. In each iteration of the loop, only one of the waiting tasks gets one."""
        async with self._lock:
            await asyncio.sleep(0)
