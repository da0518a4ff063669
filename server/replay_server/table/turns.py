"""Runs inserts and resets of a table one at a time, even if some of them await a worker thread.

    turns = Turns()
    if turns.are_free:                              # no insert is running or waiting
        ...                                         # insert without awaiting, or begin a long insert as below
    else:
        async with turns.mine():                    # wait in line
            task = turns.begin(insert(...), ended)  # later inserts wait until this one ends
        await task

A long insert completes even if its caller stops waiting. A reset takes its turn with `Turns.in_turn`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from replay_server.errors import RequestError

T = TypeVar("T")


class Turns:
    """The waiting inserts of one table, and its long insert or reset in progress, if any."""

    def __init__(self) -> None:
        """Start with no inserts in line."""
        self._under_way: asyncio.Task[Any] | None = None
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def are_free(self) -> bool:
        """Whether no insert is running or waiting."""
        return self._under_way is None and not self._line

    async def ended(self) -> None:
        """Wait until no long insert is running."""
        while self._under_way is not None:
            await asyncio.wait([self._under_way])

    @property
    def under_way(self) -> asyncio.Task[Any] | None:
        """The running long insert or reset, or None."""
        return self._under_way

    def begin(self, work: Coroutine[Any, Any, T], ended: Callable[[], None]) -> asyncio.Task[T]:
        """Start a long insert or a reset, and return its task.

        ``ended`` is called when it has finished or failed, before the next one starts.
        """
        assert self._under_way is None

        def go_on(_: asyncio.Task[T]) -> None:
            self._under_way = None
            ended()
            self._admit_next()

        self._under_way = task = asyncio.create_task(work)
        task.add_done_callback(go_on)
        return task

    async def in_turn(self, work: Callable[[], Coroutine[Any, Any, T]], ended: Callable[[], None]) -> T:
        """Wait until all earlier inserts have ended, then do long work; inserts wait until it ends. See `begin`.

        Work that has begun continues if this call is canceled.
        """
        if self.are_free:
            return await asyncio.shield(self.begin(work(), ended))
        async with self.mine():
            await self.ended()
            task = self.begin(work(), ended)
        return await asyncio.shield(task)

    @asynccontextmanager
    async def mine(self) -> AsyncIterator[None]:
        """Wait until all earlier inserts have ended, then enter the block, which must not await anything."""
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
        """Raise ``refusal`` in all waiting inserts."""
        for turn in self._line:
            if not turn.done():
                turn.set_exception(refusal)
        self._line.clear()

    def _admit_next(self) -> None:
        if self._under_way is None and self._line and not self._line[0].done():
            self._line[0].set_result(None)
