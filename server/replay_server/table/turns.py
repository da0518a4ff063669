"""Inserts into a table go one after the other, also where one of them takes several turns of the event loop.

turns = Turns()
if turns.are_free:                  # nobody inserts, nobody waits: go on at once
    ...
async with turns.mine():            # else after those who came before
    ...                             # decide and insert, or
    task = turns.begin(insert(...)) # begin what takes long; the next one's turn comes when it has ended
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from replay_server.errors import RequestError


class Turns:
    """Whose turn it is to insert into one table."""

    def __init__(self) -> None:
        """Begin with nobody inserting."""
        self._under_way: asyncio.Task[range] | None = None
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def are_free(self) -> bool:
        """Whether nobody inserts, and nobody waits to."""
        return self._under_way is None and not self._line

    async def ended(self) -> None:
        """Return once the insert that takes long has ended, well or not."""
        while self._under_way is not None:
            await asyncio.wait([self._under_way])

    @property
    def under_way(self) -> asyncio.Task[range] | None:
        """The insert that takes long; None: there is none."""
        return self._under_way

    def begin(self, insert: Coroutine[Any, Any, range], ended: Callable[[], None]) -> asyncio.Task[range]:
        """Begin an insert that takes long. It goes on to its end, whether its caller waits for it or not.

        ``ended`` is called when it was done or has failed, before it is anybody else's turn.
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
        """Wait until all who came before have had their turn. Inside, nothing may be awaited.

        Raises:
            RequestError: what `refuse_all` was given.
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
        """Send everybody away who waits."""
        for turn in self._line:
            if not turn.done():
                turn.set_exception(refusal)
        self._line.clear()

    def _admit_next(self) -> None:
        if self._under_way is None and self._line and not self._line[0].done():
            self._line[0].set_result(None)
