"""Calls with many rows take turns, and leave time for other calls in between."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest
from replay_server.errors import RequestError
from replay_server.flow.budgets import Budget
from replay_server.flow.turns import LongCalls

WORK_S = 0.02


def long_calls(most: int = 100) -> LongCalls:
    return LongCalls(Budget("waiting calls", "max_waiting_calls of the server", most, 1.0))


def test_callers_have_their_turns_one_after_another() -> None:
    order: list[str] = []

    async def call(turns: LongCalls, caller: str) -> None:
        await turns.turn(caller)
        order.append(caller)

    async def play() -> None:
        turns = long_calls()
        await asyncio.gather(*(call(turns, caller) for caller in "aaaabbc"))

    asyncio.run(play())
    assert "".join(order[:4]) == "aabc", "the first worked at once; then one of each"


def test_between_two_of_them_the_loop_is_free_for_as_long_as_one_takes() -> None:
    free_s: list[float] = []

    async def work(turns: LongCalls) -> None:
        await turns.turn("caller")
        time.sleep(WORK_S)
        free_s.append(time.perf_counter())

    async def play() -> None:
        turns = long_calls()
        await asyncio.gather(*(work(turns) for _ in range(4)))

    asyncio.run(play())
    between = [later - earlier for earlier, later in itertools.pairwise(free_s)]
    assert min(between) >= 2 * WORK_S


def test_a_call_that_is_cancelled_holds_nobody_up() -> None:
    async def play() -> None:
        turns = long_calls()
        assert not await turns.turn("first")
        cancelled, next_one = (asyncio.create_task(turns.turn(name)) for name in ("second", "third"))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert await next_one
        await turns.turn("fourth")

    asyncio.run(asyncio.wait_for(play(), 10))


def test_so_many_may_wait() -> None:
    async def play() -> None:
        turns = long_calls(most=1)
        await turns.turn("first")
        waits = asyncio.create_task(turns.turn("second"))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="waiting calls"):
            await turns.turn("second")
        assert await waits

    asyncio.run(asyncio.wait_for(play(), 10))
