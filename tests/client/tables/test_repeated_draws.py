"""Readers of a queue whose connection breaks again and again: each row arrives once, in order."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from replay_client import Batch, ReplayClient, Table, aio

from tests.client.numbered import assert_whole, rows
from tests.support.server_process import ServerProcess
from tools.faults.proxy import Proxy

ROWS = 3_000
BATCH = 5
CUT_EVERY = 40
"""Batches between two cuts."""
CUT_WITHIN_S = 0.005

Read = Callable[[str, str, Callable[[Batch], None]], None]
"""Passes batches of the table with this name, at this address, to a function until all rows have arrived."""


def by_sampler(address: str, name: str, take: Callable[[Batch], None]) -> None:
    with (
        ReplayClient(address, same_host=False) as client,
        client[name].sampler(BATCH, prefetch=3, timeout_s=20.0) as sampler,
    ):
        for _ in range(ROWS // BATCH):
            take(next(sampler))


def by_sample(address: str, name: str, take: Callable[[Batch], None]) -> None:
    with ReplayClient(address, same_host=False) as client:
        for _ in range(ROWS // BATCH):
            take(client[name].sample(BATCH, timeout_s=20.0))


def by_a_sampler_of_a_loop(address: str, name: str, take: Callable[[Batch], None]) -> None:
    async def read() -> None:
        async with (
            aio.ReplayClient(address, same_host=False) as client,
            (await client.table(name)).sampler(BATCH, prefetch=3, timeout_s=20.0) as sampler,
        ):
            for _ in range(ROWS // BATCH):
                take(await anext(sampler))

    asyncio.run(read())


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[Proxy]:
    with Proxy(server.port) as made:
        yield made


@pytest.mark.parametrize("read", [by_sampler, by_sample, by_a_sampler_of_a_loop])
def test_each_row_arrives_once_and_in_order(proxy: Proxy, new_table: Callable[..., Table], read: Read) -> None:
    """Replies that are on their way are lost with the connection."""
    table = new_table(capacity=1_000, backend="fifo")
    arrived: list[int] = []
    chance = random.Random(0)
    cuts: list[threading.Timer] = []

    def take(batch: Batch) -> None:
        assert_whole(batch.columns)
        arrived.extend(batch["number"].tolist())
        if len(arrived) % (CUT_EVERY * BATCH) == 0:
            cuts.append(threading.Timer(chance.uniform(0, CUT_WITHIN_S), proxy.reset))
            cuts[-1].start()

    def write() -> None:
        for first in range(0, ROWS, 50):
            table.insert(rows(np.arange(first, first + 50)), timeout_s=60.0)

    writing = threading.Thread(target=write)
    writing.start()
    read(proxy.address, table.name, take)
    for thread in (writing, *cuts):
        thread.join()
    assert arrived == list(range(ROWS))
    assert proxy.connections >= len(cuts) > 10, "otherwise, the test shows little"
