"""Garbage collection in a running server."""

from __future__ import annotations

import asyncio
import gc

from replay_server.process.garbage import collect_rarely


def full_collections() -> int:
    """Number of full collections of this process."""
    return int(gc.get_stats()[2]["collections"])


def test_objects_of_clients_cause_no_full_collection_before_its_time() -> None:
    async def check() -> None:
        gc.collect()
        before = full_collections()
        collecting = asyncio.create_task(collect_rarely())
        await asyncio.sleep(0)
        kept = [[number] for number in range(1_000_000)]
        assert full_collections() == before
        assert kept
        collecting.cancel()

    asyncio.run(check())


def test_garbage_is_collected_in_time() -> None:
    async def check() -> None:
        before = full_collections()
        collecting = asyncio.create_task(collect_rarely())
        while full_collections() == before:
            await asyncio.sleep(0.01)
        collecting.cancel()

    asyncio.run(check())
