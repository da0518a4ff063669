"""Budgets of shared resources, each with a total limit and a limit per caller.

    calls = Budget("waiting calls", "max_waiting_calls of the server", most=8_192, share=0.5)
    with calls.held(caller):                    # raises TOO_LARGE if exhausted
        ...
    replies = QueuedBudget(...)
    if not replies.take_now(caller, size):
        await replies.take_in_turn(caller, size)    # waits only behind calls of the same caller

A caller that holds nothing may always take one amount of any size, so no caller can starve the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from replay_server import errors

SMALL_BYTES: Final = 1 << 18
"""Largest size of a small item, in bytes."""
_PART_FOR_SMALL: Final = 8
"""1/8 of a caller's share is reserved for small items."""


class Budget:
    """Counts what each caller holds."""

    def __init__(self, bound: str, setting: str, most: int, share: float) -> None:
        """Create a budget of ``most`` for all callers together, and of this share of it for each.

        ``bound`` and ``setting`` say in refusals what it counts, and where ``most`` comes from.
        """
        self._bound = bound
        self._setting = setting
        self._most = most
        self._each = max(1, int(most * share)) if most else 0
        self._held: dict[str, int] = {}
        self._total = 0

    def holds(self, caller: str) -> int:
        """Amount held by a caller."""
        return self._held.get(caller, 0)

    @property
    def total(self) -> int:
        """Amount held by all callers."""
        return self._total

    def check(self, caller: str, amount: int = 1) -> None:
        """Refuse an amount that exceeds the budget."""
        if self._fits(caller, amount):
            return
        mine = self.holds(caller) + amount
        if mine > self._each and self._each < self._most:
            raise errors.too_large(
                f"{self._bound}, of one caller", self._each, mine, f"{self._setting}, times caller_share"
            )
        raise errors.too_large(self._bound, self._most, self._total + amount, self._setting)

    def take(self, caller: str, amount: int = 1) -> None:
        """Take an amount without checking; see `check`."""
        self._held[caller] = self.holds(caller) + amount
        self._total += amount

    def give_back(self, caller: str, amount: int = 1) -> None:
        """Give back an amount."""
        self._total -= amount
        left = self._held[caller] - amount
        if left:
            self._held[caller] = left
        else:
            del self._held[caller]

    @contextmanager
    def held(self, caller: str, amount: int = 1) -> Iterator[None]:
        """Hold an amount inside the block, or refuse it like `check`."""
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
    """A budget of bytes that calls can wait for. Each caller has a line for small items and a line for large ones.

    An eighth of a caller's share is reserved for small items. So a program that holds large items does not block the
    small items of other programs that count as the same caller.
    """

    def __init__(self, bound: str, setting: str, most: int, share: float, waiting: Budget) -> None:
        """Create a budget; ``waiting`` counts the waiting calls."""
        super().__init__(bound, setting, most, share)
        self._waiting = waiting
        self._for_large = self._each - self._each // _PART_FOR_SMALL
        self._large: Counter[str] = Counter()
        self._lines: dict[tuple[str, bool], deque[tuple[int, asyncio.Future[None]]]] = {}

    def take_now(self, caller: str, amount: int) -> bool:
        """Take an amount if it is available and the caller's line for such items is empty. Return whether it was."""
        if (caller, amount <= SMALL_BYTES) in self._lines or not self._fits(caller, amount):
            return False
        self.take(caller, amount)
        return True

    async def take_in_turn(self, caller: str, amount: int) -> None:
        """Wait until an amount is available, and take it."""
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
        """Take an amount without checking."""
        super().take(caller, amount)
        if amount > SMALL_BYTES:
            self._large[caller] += 1

    def give_back(self, caller: str, amount: int = 1) -> None:
        """Give back an amount, and serve waiting calls."""
        super().give_back(caller, amount)
        if amount > SMALL_BYTES:
            self._large[caller] -= 1
            if not self._large[caller]:
                del self._large[caller]
        if self._lines:
            self._serve()

    def _serve(self) -> None:
        """Serve waiting calls as far as the budget allows, one from each line at a time."""
        moved = True
        while moved:
            moved = False
            for of, line in list(self._lines.items()):
                amount, turn = line[0]
                # Canceled calls leave the line when their tasks run.
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
        if not self._large[caller]:  # small items must not delay the caller's only large one
            return True
        return self.holds(caller) + amount <= self._for_large and super()._fits(caller, amount)
