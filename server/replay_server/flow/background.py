"""Supervises what a server does beside its calls, so that no failure ends it silently.

    background = Background()
    background.repeat("live page", feed.make_frame)     # each round ends with its own pause
    ...
    await background.stop()

A round that fails is logged and counted, and the next one begins after a pause, which grows while rounds keep failing.
Metrics and `/readyz` show this.

A `Job` is work of a call that may be canceled before the work has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from replay_proto.errors import FieldError

from replay_server.errors import RequestError

T = TypeVar("T")

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
_MOST_DOUBLINGS: Final = 10
"""How often the pause doubles, so that its computation cannot overflow."""
_KEEPS_FAILING: Final = 3
"""Failures in a row after which a loop counts as one that keeps failing."""


@dataclass
class Loop:
    """Figures of a loop."""

    failures: int = 0
    """Rounds that failed since the server started."""
    in_a_row: int = 0
    """Rounds that failed since the last one that succeeded."""

    @property
    def keeps_failing(self) -> bool:
        """Whether the last rounds all failed."""
        return self.in_a_row >= _KEEPS_FAILING


class Job(Generic[T]):
    """Work that runs to its end, even if the call that waits for it is canceled."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        """Begin the work."""
        self.task = asyncio.create_task(work)
        """The work."""
        self._is_awaited = False
        self.task.add_done_callback(self._ended)

    async def outcome(self) -> T:
        """Wait for the work. If the call is canceled, an unexpected failure of the work is logged."""
        self._is_awaited = True
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            self._is_awaited = False
            if self.task.done():
                self._ended(self.task)
            raise

    def _ended(self, task: asyncio.Task[T]) -> None:
        """Log a failure that no call learns of. A refusal concerns only the call."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._is_awaited and not isinstance(error, RequestError | FieldError):
            log.error("the work of a call that has ended failed", exc_info=error)


class Background:
    """The loops of a server."""

    def __init__(self) -> None:
        """Start without loops."""
        self._loops: dict[str, Loop] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def loops(self) -> Mapping[str, Loop]:
        """The figures of all loops, by name."""
        return self._loops

    def repeat(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do some work again and again, until it is stopped. ``work`` is one round, with the pause until the next one.

        The name is that of the loop in the log and in metrics.
        """
        self._loops.setdefault(name, Loop())
        self._tasks[name] = asyncio.create_task(self._repeat(name, work), name=name)

    async def stop(self, *names: str) -> None:
        """Cancel these loops, or all, and wait for their ends."""
        ending = [self._tasks.pop(name) for name in names or tuple(self._tasks) if name in self._tasks]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _repeat(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        loop = self._loops[name]
        while True:
            try:
                await work()
                loop.in_a_row = 0
            except Exception as error:  # of any kind: the loop must continue
                pause_s = min(FIRST_PAUSE_S * 2 ** min(loop.in_a_row, _MOST_DOUBLINGS), LONGEST_PAUSE_S)
                loop.failures += 1
                loop.in_a_row += 1
                log.error(
                    "%s failed, %d in a row; it continues in %g s: %s",
                    *(name, loop.in_a_row, pause_s, error or type(error).__name__),
                    exc_info=None if isinstance(error, RequestError | OSError | MemoryError) else error,
                )
                await asyncio.sleep(pause_s)
