"""Lines of waiting calls, one for each caller, which take turns: long work one at a time, and calls with many rows.

    changing = OneByOne(waiting)
    table = await changing.do(caller, lambda: create(config))

Callers take turns, so a caller with many calls delays others by one piece of work at most. Work is not begun for a call
that was canceled in line. Once begun, it runs to its end, so that nothing is left half done.

    if rows > LONG_ROWS:
        await long_calls.turn(caller)
    ...                                     # do the work on the event loop, without awaiting

After each call with many rows, the event loop is kept free for as long as the call took, so that short requests are
answered before the next long call starts.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from replay_server.flow.background import Job
from replay_server.flow.budgets import Budget

T = TypeVar("T")


class Lines:
    """Calls that wait, in a line for each caller."""

    def __init__(self, waiting: Budget) -> None:
        """Start with empty lines; ``waiting`` counts the calls in them."""
        self._waiting = waiting
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  # by caller; the next caller comes first

    async def wait(self, caller: str, passed_on: Callable[[], object]) -> None:
        """Wait in a caller's line until `admit_next` admits this call.

        ``passed_on`` is called if the call is canceled after it was admitted and before it could run.

        Raises:
            RequestError: TOO_LARGE if too many calls wait.
        """
        with self._waiting.held(caller):
            turn = asyncio.get_running_loop().create_future()
            self._lines.setdefault(caller, deque()).append(turn)
            try:
                await turn
            except BaseException:
                if turn.cancelled():
                    self._leave(caller, turn)
                else:
                    passed_on()
                raise

    def admit_next(self) -> bool:
        """Admit the first call in the line of the next caller; return whether there was one."""
        while self._lines:
            caller, line = next(iter(self._lines.items()))
            turn = line.popleft()
            del self._lines[caller]
            if line:
                self._lines[caller] = line  # to the end of the queue
            if not turn.done():
                turn.set_result(None)
                return True
        return False

    def _leave(self, caller: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(caller)
        if line is not None and turn in line:
            line.remove(turn)
            if not line:
                del self._lines[caller]


class OneByOne:
    """Does long work, one piece at a time."""

    def __init__(self, waiting: Budget) -> None:
        """Start idle; ``waiting`` counts the waiting calls."""
        self._lines = Lines(waiting)
        self._is_free = True
        self._idle = asyncio.Event()
        self._idle.set()

    async def do(self, caller: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for this caller's turn, then do the work.

        The work is not begun if this call is canceled in line. If the call is canceled later, the work continues, and
        the next piece waits for its end.
        """
        if not self._is_free:
            await self._lines.wait(caller, self._go_on)
        self._is_free = False
        self._idle.clear()
        job = Job(work())
        job.task.add_done_callback(self._go_on)
        return await job.outcome()

    async def ended(self) -> None:
        """Wait until no work is running or waiting."""
        await self._idle.wait()

    def _go_on(self, _: object = None) -> None:
        if not self._lines.admit_next():
            self._is_free = True
            self._idle.set()


LONG_ROWS: Final = 1024
"""Calls with more rows are long: they block the event loop for more than 0.3 ms."""


class LongCalls:
    """Schedules long calls."""

    def __init__(self, waiting: Budget) -> None:
        """Create the schedule; ``waiting`` counts the waiting calls."""
        self._lines = Lines(waiting)
        self._is_free = True

    async def turn(self, caller: str) -> bool:
        """Wait for this caller's turn, which lasts until the call awaits something. Return whether it had to wait."""
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
