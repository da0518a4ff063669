"""Bounds the memory of long frames while they arrive.

A long frame is received into memory of its own, as much as its head says. So it begins only once its caller's share has
room for it; until then, the connection is not read from. A frame that is begun must be complete within a time, so the
next one gets its turn. The memory for frames of medium length belongs to the connection, and is of the same share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from replay_proto.access.serving import BODY_S
from replay_proto.frames import CHUNK_BYTES

from replay_server import errors
from replay_server.errors import RequestError
from replay_server.flow.bounds import Bounds
from replay_server.flow.budgets import Budget, QueuedBudget

_FRAMES_OF_A_CALLER: Final = 2
"""Bytes that one caller may have begun, in frames of the maximum size. An eighth is reserved for frames of up to
256 KiB, so only one of the maximum size is received at a time, but several of those that our client sends."""
_CALLERS: Final = 16
"""Callers that may have begun so many at the same time."""


def budget_of_long_frames(bounds: Bounds) -> QueuedBudget:
    """Return a budget for the bytes of long frames that have begun and are not complete."""
    each, setting = _FRAMES_OF_A_CALLER * bounds.max_request_bytes, "max_request_mb of the server"
    waiting = Budget("connections to the local socket", "max_local_connections", bounds.max_local_connections, 1.0)
    return QueuedBudget("bytes of unfinished messages", setting, _CALLERS * each, 1 / _CALLERS, waiting)


class LongFrame:
    """The long frame that a connection is about to receive, or receives; then the next one."""

    def __init__(
        self, budget: QueuedBudget, caller: str, go_on: Callable[[], None], refuse: Callable[[RequestError], None]
    ) -> None:
        """Hold nothing yet. ``budget`` is that of all connections; see `budget_of_long_frames`.

        ``go_on`` is called when a frame that had to wait may begin, ``refuse`` if a frame is not complete in time.
        """
        self._budget = budget
        self._caller = caller
        self._go_on = go_on
        self._refuse = refuse
        self.held = 0
        """Bytes of the frame that has begun; 0: none has."""
        self._kept = 0
        self._turn: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def may_begin(self, size: int) -> bool:
        """Whether a frame of this size may begin now. If not, ask again when ``go_on`` is called."""
        if self._turn is None and not self.held:
            if self._budget.take_now(self._caller, size):
                self._begin(size)
            else:
                self._turn = asyncio.create_task(self._begin_in_turn(size))
        return bool(self.held)

    def may_grow(self) -> bool:
        """Whether the connection may have memory for frames of medium length, until it ends."""
        if not self._budget.take_now(self._caller, CHUNK_BYTES):
            return False
        self._kept += CHUNK_BYTES
        return True

    def complete(self) -> None:
        """Release the room of a frame that is complete, or that will not be received."""
        if self.held:
            self._budget.give_back(self._caller, self.held)
            self.held = 0
        if self._deadline is not None:
            self._deadline.cancel()

    def close(self) -> None:
        """Release the room, and leave the line."""
        if self._turn is not None:
            self._turn.cancel()
        self.complete()
        if self._kept:
            self._budget.give_back(self._caller, self._kept)
            self._kept = 0

    def _begin(self, size: int) -> None:
        self.held = size
        self._deadline = asyncio.get_running_loop().call_later(BODY_S, self._end)

    async def _begin_in_turn(self, size: int) -> None:
        await self._budget.take_in_turn(self._caller, size)
        self._turn = None
        self._begin(size)
        self._go_on()

    def _end(self) -> None:
        self._refuse(errors.message_unfinished(f"did not become so within {BODY_S:g} s"))
