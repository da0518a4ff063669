"""Garbage collection in a running server."""

from __future__ import annotations

import asyncio
import gc

from replay_server.process.surroundings import RareCollections


def full_collections() -> int:
    """Number of full collections of this process."""
    return int(gc.get_stats()[2]["collections"])


def test_objects_of_clients_cause_no_full_collection_before_its_time() -> None:
    async def check() -> None:
        gc.collect()
        before = full_collections()
        rare = RareCollections()
        kept = [[number] for number in range(1_000_000)]
        assert full_collections() == before
        assert kept
        rare.close()

    asyncio.run(check())


def test_garbage_is_collected_in_time() -> None:
    async def check() -> None:
        before = full_collections()
        rare = RareCollections()
        await rare.collect()
        assert full_collections() == before + 1
        rare.close()

    asyncio.run(check())
