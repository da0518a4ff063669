"""Calls of many rows take turns, so that nobody waits long for those of somebody else.

    if rows > LONG_ROWS:
        await long_calls.turn(caller)
    ...                                     # the work, on the event loop, without waiting

One of them works at a time, of one caller after another. Between two, the loop is free for as long as the first one
took: whoever sends a short request then is answered before the next long one begins.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

from replay_server.flow.budgets import Budget

LONG_ROWS: Final = 1024
"""A call of more rows is a long one: it takes the event loop for more than 0.3 ms."""


class LongCalls:
    """Whose long call works next."""

    def __init__(self, waiting: Budget) -> None:
        """Begin with none; ``waiting`` counts the calls that wait here."""
        self._waiting = waiting
        self._is_free = True
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  # by caller, the one whose turn is next first

    async def turn(self, caller: str) -> bool:
        """Return once a long call of this caller may work: at once, and until it waits for something.

        Returns:
            Whether it had to wait.

        Raises:
            RequestError: TOO_LARGE, if too many calls wait.
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
        # What was scheduled before this runs first: the work, in the task whose turn it is.
        asyncio.get_running_loop().call_soon(self._worked, time.perf_counter())

    def _worked(self, began: float) -> None:
        """Leave the loop to others for as long as the work took."""
        asyncio.get_running_loop().call_later(time.perf_counter() - began, self._next)

    def _next(self) -> None:
        self._is_free = True
        while self._lines and self._is_free:
            caller, line = next(iter(self._lines.items()))
            turn = line.popleft()
            del self._lines[caller]
            if line:
                self._lines[caller] = line  # behind all others
            if not turn.done():  # else its call was cancelled
                turn.set_result(None)
                self._begin()
