"""Runs inserts into a table one at a time, even if one takes several turns of the event loop.

turns = Turns()
if turns.are_free:                  # no insert is running or waiting
    ...
async with turns.mine():            # otherwise wait in line
    ...                             # decide and insert, or
    task = turns.begin(insert(...)) # start a long insert; the next turn begins after it
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from replay_server.errors import RequestError


class Turns:
    """The line of inserts into one table."""

    def __init__(self) -> None:
        """Start with no inserts in line."""
        self._under_way: asyncio.Task[range] | None = None
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def are_free(self) -> bool:
        """Whether no insert is running or waiting."""
        return self._under_way is None and not self._line

    async def ended(self) -> None:
        """Wait until the long insert has finished or failed."""
        while self._under_way is not None:
            await asyncio.wait([self._under_way])

    @property
    def under_way(self) -> asyncio.Task[range] | None:
        """The running long insert, or None."""
        return self._under_way

    def begin(self, insert: Coroutine[Any, Any, range], ended: Callable[[], None]) -> asyncio.Task[range]:
        """Start a long insert. It completes even if its caller stops waiting.

        ``ended`` is called when the insert has finished or failed, before the next turn.
        """
        assert self._under_way is None

        def go_on(_: asyncio.Task[range]) -> None:
            self._under_way = None
            ended()
            self._admit_next()

        self._under_way = asyncio.create_task(insert)
        self._under_way.add_done_callback(go_on)
        return self._under_way

    @asynccontextmanager
    async def mine(self) -> AsyncIterator[None]:
        """Wait for earlier inserts. The block must not await anything.

        Raises:
            RequestError: the refusal passed to `refuse_all`.
        """
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
            yield
        finally:
            if turn in self._line:
                self._line.remove(turn)
            self._admit_next()

    def refuse_all(self, refusal: RequestError) -> None:
        """Refuse all waiting inserts."""
        for turn in self._line:
            if not turn.done():
                turn.set_exception(refusal)
        self._line.clear()

    def _admit_next(self) -> None:
        if self._under_way is None and self._line and not self._line[0].done():
            self._line[0].set_result(None)
