"""Schedules calls with many rows, so that no caller waits long behind others.

    if rows > LONG_ROWS:
        await long_calls.turn(caller)
    ...                                     # do the work on the event loop, without awaiting

Long calls run one at a time, alternating between callers. After each long call, the event loop is kept free for as long
as the call took, so that short requests are answered before the next long call starts.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from replay_server.flow.budgets import Budget
from replay_server.flow.one_by_one import Lines

LONG_ROWS: Final = 1024
"""Calls with more rows are long: they block the event loop for more than 0.3 ms."""


class LongCalls:
    """Schedules long calls."""

    def __init__(self, waiting: Budget) -> None:
        """Create the schedule; ``waiting`` counts the waiting calls."""
        self._lines = Lines(waiting)
        self._is_free = True

    async def turn(self, caller: str) -> bool:
        """Wait for this caller's turn. The turn lasts until the call awaits something.

        Returns:
            Whether the call had to wait.

        Raises:
            RequestError: TOO_LARGE if too many calls wait.
        """
        if self._is_free:
            self._begin()
            return False
        await self._lines.wait(caller, _began)
        return True

    def _begin(self) -> None:
        self._is_free = False
        # Callbacks scheduled earlier run first, including the call whose turn it is.
        asyncio.get_running_loop().call_soon(self._worked, time.perf_counter())

    def _worked(self, began: float) -> None:
        """Keep the loop free for other calls for as long as the long call took."""
        asyncio.get_running_loop().call_later(time.perf_counter() - began, self._next)

    def _next(self) -> None:
        self._is_free = True
        if self._lines.admit_next():
            self._begin()


def _began() -> None:
    """Do nothing: the turn of a call ends by itself, even if the call was canceled."""
