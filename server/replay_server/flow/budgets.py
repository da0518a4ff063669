"""What callers may hold at once of something that all of them share: so much in all, and a part of it each.

    calls = Budget("waiting calls", "max_waiting_calls of the server", most=16_384, share=0.5)
    with calls.held(caller):                    # TOO_LARGE where there is no room
        ...
    replies = QueuedBudget(...)
    await replies.take(caller, size)            # waits where there is no room, behind the caller's own only

No caller can use up what others need: whoever holds nothing may always take something, once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from replay_server import errors

SMALL_BYTES: Final = 1 << 18
"""Up to here something is small where bytes are counted."""
_PART_FOR_SMALL: Final = 8
"""One part in so many of what a caller may hold is for what is small."""


class Budget:
    """Counts what each caller holds."""

    def __init__(self, bound: str, setting: str, most: int, share: float) -> None:
        """Begin with nothing held of the ``most`` there is, of which one caller may hold a ``share``, up to 1.

        Refusals name the ``bound``, and the ``setting`` that sets it.
        """
        self._bound = bound
        self._setting = setting
        self._most = most
        self._each = max(1, int(most * share)) if most else 0
        self._held: dict[str, int] = {}
        self._total = 0

    def holds(self, caller: str) -> int:
        """What a caller holds."""
        return self._held.get(caller, 0)

    @property
    def total(self) -> int:
        """What all of them hold."""
        return self._total

    def check(self, caller: str, amount: int = 1) -> None:
        """Refuse what there is no room for.

        Raises:
            RequestError: TOO_LARGE.
        """
        if self._fits(caller, amount):
            return
        mine = self.holds(caller) + amount
        if mine > self._each and self._each < self._most:
            raise errors.too_large(
                f"{self._bound}, of one caller", self._each, mine, f"{self._setting}, times caller_share"
            )
        raise errors.too_large(self._bound, self._most, self._total + amount, self._setting)

    def take(self, caller: str, amount: int = 1) -> None:
        """Count what a caller takes; whether it may is asked by `check`."""
        self._held[caller] = self.holds(caller) + amount
        self._total += amount

    def give_back(self, caller: str, amount: int = 1) -> None:
        """It holds so much less."""
        self._total -= amount
        left = self._held[caller] - amount
        if left:
            self._held[caller] = left
        else:
            del self._held[caller]

    @contextmanager
    def held(self, caller: str, amount: int = 1) -> Iterator[None]:
        """Hold something for the length of a block.

        Raises:
            RequestError: TOO_LARGE.
        """
        self.check(caller, amount)
        self.take(caller, amount)
        try:
            yield
        finally:
            self.give_back(caller, amount)

    def _fits(self, caller: str, amount: int) -> bool:
        mine = self._held.get(caller, 0)
        if not mine:
            return self._most > 0
        return mine + amount <= self._each and self._total + amount <= self._most


class QueuedBudget(Budget):
    """A budget of bytes for which callers wait, each in lines of its own.

    What is small waits in one line and what is large in another, and the last eighth is left to what is small: those
    who have a token in common, or a machine, are not held up by one among them who takes much and keeps it.
    """

    def __init__(self, bound: str, setting: str, most: int, share: float, waiting: Budget) -> None:
        """Begin with nothing held; ``waiting`` counts the calls that wait here."""
        super().__init__(bound, setting, most, share)
        self._waiting = waiting
        self._for_large = self._each - self._each // _PART_FOR_SMALL
        self._large: Counter[str] = Counter()
        self._lines: dict[tuple[str, bool], deque[tuple[int, asyncio.Future[None]]]] = {}

    def take_now(self, caller: str, amount: int) -> bool:
        """Take something if there is room, and nobody of the same caller waits for it."""
        if (caller, amount <= SMALL_BYTES) in self._lines or not self._fits(caller, amount):
            return False
        self.take(caller, amount)
        return True

    async def take_in_turn(self, caller: str, amount: int) -> None:
        """Take something once there is room.

        Raises:
            RequestError: TOO_LARGE, if too many calls wait.
        """
        with self._waiting.held(caller):
            turn = (amount, asyncio.get_running_loop().create_future())
            self._lines.setdefault((caller, amount <= SMALL_BYTES), deque()).append(turn)
            try:
                self._serve()
                await turn[1]
            except BaseException:
                if turn[1].done() and not turn[1].cancelled():
                    self.give_back(caller, amount)
                else:
                    self._leave((caller, amount <= SMALL_BYTES), turn)
                    self._serve()
                raise

    def take(self, caller: str, amount: int = 1) -> None:
        """Count what a caller takes."""
        super().take(caller, amount)
        if amount > SMALL_BYTES:
            self._large[caller] += 1

    def give_back(self, caller: str, amount: int = 1) -> None:
        """It holds so much less, and others may go on."""
        super().give_back(caller, amount)
        if amount > SMALL_BYTES:
            self._large[caller] -= 1
            if not self._large[caller]:
                del self._large[caller]
        if self._lines:
            self._serve()

    def _serve(self) -> None:
        """Let those on for whom there is room, one of each line at a time."""
        moved = True
        while moved:
            moved = False
            for of, line in list(self._lines.items()):
                amount, turn = line[0]
                # Who was cancelled leaves as soon as its task runs.
                if not turn.done() and self._fits(of[0], amount):
                    self.take(of[0], amount)
                    turn.set_result(None)
                    self._leave(of, line[0])
                    moved = True

    def _leave(self, of: tuple[str, bool], turn: tuple[int, asyncio.Future[None]]) -> None:
        line = self._lines[of]
        line.remove(turn)
        if not line:
            del self._lines[of]

    def _fits(self, caller: str, amount: int) -> bool:
        if amount <= SMALL_BYTES:
            return super()._fits(caller, amount)
        if not self._large[caller]:  # small ones that come and go do not keep it waiting
            return True
        return self.holds(caller) + amount <= self._for_large and super()._fits(caller, amount)
