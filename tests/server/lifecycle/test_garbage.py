"""Garbage collection in a running server."""

from __future__ import annotations

import asyncio
import gc
from itertools import accumulate, chain, repeat

import pytest
from replay_server.process.garbage import RareCollections


def full_collections() -> int:
    """Number of full collections of this process."""
    return int(gc.get_stats()[2]["collections"])


def test_objects_of_clients_cause_no_full_collection_before_its_time() -> None:
    async def check() -> None:
        gc.collect()
        before = full_collections()
        rare = RareCollections(lambda: 0)
        kept = [[number] for number in range(1_000_000)]
        assert full_collections() == before
        assert kept
        rare.close()

    asyncio.run(check())


def test_garbage_is_collected_in_time() -> None:
    async def check() -> None:
        before = full_collections()
        rare = RareCollections(lambda: 0)
        await rare.collect()
        assert full_collections() == before + 1
        rare.close()

    asyncio.run(check())


@pytest.mark.parametrize(
    ("begin", "looks"),
    [((0, 99, 0, 0), 2), ((0, 100, 0), 3), ((5000, 300, 100, 99, 0), 4), ((0, *repeat(100, 20)), 11)],
    ids=["few", "many", "then few", "without end"],
)
def test_a_collection_waits_while_many_calls_begin_but_not_forever(begin: tuple[int, ...], looks: int) -> None:
    """``looks`` is how often the calls are counted, after ``begin[k]`` of them began before the k-th time."""
    counted = list(accumulate(begin))

    async def check() -> int:
        remaining = chain(counted)
        rare = RareCollections(lambda: next(remaining), interval_s=0.001)
        before = full_collections()
        await rare.collect()
        assert full_collections() == before + 1
        rare.close()
        return len(counted) - len(list(remaining))

    assert asyncio.run(check()) == looks
