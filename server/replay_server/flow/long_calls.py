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
from collections import deque
from typing import Final

from replay_server.flow.budgets import Budget

LONG_ROWS: Final = 1024
"""Calls with more rows are long: they block the event loop for more than 0.3 ms."""


class LongCalls:
    """Schedules long calls."""

    def __init__(self, waiting: Budget) -> None:
        """Create the schedule; ``waiting`` counts the waiting calls."""
        self._waiting = waiting
        self._is_free = True
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  # by caller; the next caller comes first

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
        with self._waiting.held(caller):
            turn = asyncio.get_running_loop().create_future()
            self._lines.setdefault(caller, deque()).append(turn)
            await turn
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
        while self._lines and self._is_free:
            caller, line = next(iter(self._lines.items()))
            turn = line.popleft()
            del self._lines[caller]
            if line:
                self._lines[caller] = line  # to the end of the queue
            if not turn.done():  # unless the call was canceled
                turn.set_result(None)
                self._begin()
