"""Calls that are canceled at random moments store each row once or not at all, and lose no batch."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from replay_client import Batch, DeadlineExceededError, ServerUnavailableError, aio

from tests.client.conftest import COLUMNS
from tests.client.numbered import assert_whole, row, rows
from tests.support.server_process import ServerProcess

T = TypeVar("T")
StartServer = Callable[..., ServerProcess]


@pytest.fixture
def durable(start_server: StartServer, tmp_path: Path) -> ServerProcess:
    """A server whose tables survive a kill."""
    return start_server("--data-dir", str(tmp_path / "data"))


async def canceled_at_random(call: Coroutine[Any, Any, T], chance: random.Random) -> T | None:
    """Make a call; cancel most of them after a random number of iterations of the loop. None: it was canceled."""
    if not chance.randrange(4):
        return await call
    task = asyncio.create_task(call)
    for _ in range(chance.choice((0, 1, 2, 3, 5, 10, 20))):
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.0, 0.001)))
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


async def numbers_in(table: aio.Table) -> list[int]:
    """The numbers of all rows, in order of their keys, after checking that the rows are intact."""
    read = await table.read(np.arange((await table.describe()).inserted))
    assert_whole(read.columns)
    return [int(number) for number in read["number"]]


async def exhaust(sampler: aio.Sampler, batches: list[Batch]) -> None:
    """Collect batches until drawing raises an error."""
    async for batch in sampler:
        batches.append(batch)


async def waiting_inserts(table: aio.Table, count: int) -> None:
    """Wait until as many inserts wait at the server."""
    async with asyncio.timeout(30):
        while (await table.stats()).waiting_inserts != count:
            await asyncio.sleep(0.01)


def restart(server: ServerProcess) -> None:
    server.kill()
    server.restart()


def test_a_canceled_insert_stores_its_rows_once_or_not_at_all(durable: ServerProcess) -> None:
    async def main() -> None:
        async with aio.ReplayClient(durable.address) as client:
            table = await client.create_table("t", columns=COLUMNS, capacity=100_000)
            keys: dict[int, int] = {}

            async def insert(actor: int) -> None:
                chance = random.Random(actor)
                for index in range(40):
                    number = 1000 * actor + index
                    answer = await canceled_at_random(table.insert(rows([number])), chance)
                    if answer is not None:
                        keys[number] = int(answer[0])

            actors = asyncio.gather(*map(insert, range(8)))
            await asyncio.to_thread(restart, durable)
            await actors
            arrived = await numbers_in(table)
            assert len(set(arrived)) == len(arrived)
            assert all(arrived[key] == number for number, key in keys.items())
            assert len(keys) >= 50
            assert (await table.insert(rows([-1]))).tolist() == [len(arrived)]

    asyncio.run(main())


@pytest.mark.parametrize("same_host", [True, False])
def test_a_canceled_append_leaves_its_row_out_and_the_others_in_order(durable: ServerProcess, same_host: bool) -> None:
    async def main() -> None:
        async with aio.ReplayClient(durable.address, same_host=same_host) as client:
            table = await client.create_table("t", columns=COLUMNS, capacity=100_000)
            chance = random.Random(3)
            appended, canceled = [], 0
            restarted = asyncio.create_task(asyncio.to_thread(restart, durable))
            async with table.writer(block_rows=3, max_blocks_in_flight=2) as writer:
                for number in range(400):
                    task = asyncio.create_task(writer.append(**row(number)))
                    if number % 4:
                        for _ in range(chance.randint(0, 4)):
                            await asyncio.sleep(0)
                        task.cancel()
                    try:
                        await task
                        appended.append(number)
                    except asyncio.CancelledError:
                        canceled += 1
                    if number % 50 == 0:
                        await canceled_at_random(writer.flush(), chance)
            await restarted
            assert await numbers_in(table) == appended
            assert len(appended) >= 100
            assert canceled >= 50

    asyncio.run(main())


def test_a_canceled_append_all_says_how_many_rows_it_has_appended(server: ServerProcess) -> None:
    async def main() -> None:
        async with aio.ReplayClient(server.address) as client:
            table = await client.create_table("halved", columns=COLUMNS, capacity=4, backend="fifo")
            writer = table.writer(streams=8, block_rows=1, max_blocks_in_flight=1)
            appending = asyncio.create_task(writer.append_all(rows(range(8))))
            await waiting_inserts(table, 1)
            appending.cancel()
            with pytest.raises(asyncio.CancelledError) as canceled:
                await appending
            appended = await table.size() + writer.in_flight
            assert 4 < appended < 8
            (note,) = canceled.value.__notes__
            assert note == f"the rows of the first {appended} of 8 streams were appended"
            await table.sample(4)
            await writer.close()
            assert (await table.read(np.arange(8)))["number"].tolist() == list(range(4, appended))
            await table.drop()

    asyncio.run(main())


@pytest.mark.parametrize("same_host", [True, False])
def test_batches_that_arrive_for_a_canceled_call_come_with_the_next(server: ServerProcess, same_host: bool) -> None:
    """Draws from a queue remove rows, so that every lost batch would be missed."""

    async def main() -> None:
        async with aio.ReplayClient(server.address, same_host=same_host) as client:
            table = await client.create_table("queue", columns=COLUMNS, capacity=1000, backend="fifo")
            await table.insert(rows(range(400)))
            chance = random.Random(5)
            batches: list[Batch] = []
            async with table.sampler(2, prefetch=3, timeout_s=0.2) as sampler:
                while len(batches) < 195:
                    batch = await canceled_at_random(anext(sampler), chance)
                    if batch is not None:
                        batches.append(batch)
                with pytest.raises(DeadlineExceededError):
                    await exhaust(sampler, batches)
            assert [int(number) for batch in batches for number in batch["number"]] == list(range(400))
            await table.drop()

    asyncio.run(main())


def test_a_canceled_insert_that_waits_for_room_stores_nothing(server: ServerProcess) -> None:
    async def main() -> None:
        async with aio.ReplayClient(server.address) as client:
            table = await client.create_table("full", columns=COLUMNS, capacity=3, backend="fifo")
            await table.insert(rows(range(3)))
            waiting = asyncio.create_task(table.insert(rows([9])))
            await waiting_inserts(table, 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await waiting_inserts(table, 0)
            drawn = [await table.sample(1) for _ in range(3)]
            assert [int(batch["number"][0]) for batch in drawn] == [0, 1, 2]
            assert (await table.insert(rows([3]))).tolist() == [3]
            await table.drop()

    asyncio.run(main())


def test_a_writer_gives_up_keeps_its_rows_and_may_be_asked_to_go_on(durable: ServerProcess) -> None:
    async def main() -> None:
        async with aio.ReplayClient(durable.address) as client:
            table = await client.create_table("t", columns=COLUMNS, capacity=1000)
            async with table.writer(reconnect_timeout_s=0.1) as writer:
                await writer.append(**row(0))
                await writer.flush()
                durable.kill()
                await writer.append(**row(1))
                for _ in range(2):
                    with pytest.raises(ServerUnavailableError):
                        await writer.flush()
                assert writer.unacknowledged_rows()["number"].tolist() == [1]
                durable.restart()
                await client.tables()  # waits for the server
                await writer.append(**row(2))
            assert await numbers_in(table) == [0, 1, 2]

    asyncio.run(main())
