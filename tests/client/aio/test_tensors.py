"""Samplers for asyncio that copy batches to a device."""

from __future__ import annotations

import asyncio
import math
import threading

import pytest
import torch
from replay_client import ClosedError, InvalidArgumentError, aio
from replay_client.aio.tensors import MixedTensorSampler

from tests.client.conftest import COLUMNS
from tests.client.numbered import rows
from tests.support.deadlines import PATIENCE_S
from tests.support.far_tensor import FarTensor
from tests.support.server_process import ServerProcess


def test_a_thread_waits_for_priorities_of_another_device_in_place_of_the_loop(server: ServerProcess) -> None:
    FarTensor.seen_by.clear()

    async def main() -> None:
        async with aio.ReplayClient(server.address) as client:
            table = await client.create_table("far", columns=COLUMNS, capacity=100)
            await table.insert(rows(range(20)))
            async with table.sampler(8, beta=0.4, prefetch=1, device="cpu") as sampler:
                for _ in range(5):
                    await sampler.update_priorities(await anext(sampler), FarTensor.of(torch.full((8,), 0.5)))
                await sampler.flush()
                assert threading.current_thread().name not in FarTensor.seen_by
                await sampler.update_priorities([1], FarTensor.of(torch.tensor([torch.nan])))
                with pytest.raises(InvalidArgumentError, match="priorities: expected finite numbers"):
                    [await anext(sampler) for _ in range(3)]
                keys = (await anext(sampler)).row_keys
                await sampler.update_priorities(keys, FarTensor.of(torch.full((8,), 0.25)))
            assert FarTensor.seen_by
            assert (await table.read(keys)).priorities.tolist() == [0.25] * 8
            with pytest.raises(ClosedError):
                await anext(sampler)
            await table.drop()

    asyncio.run(main())


def test_a_batch_on_its_way_to_the_device_comes_with_the_next_call(server: ServerProcess) -> None:
    async def main() -> None:
        async with aio.ReplayClient(server.address) as client:
            table = await client.create_table("queue", columns=COLUMNS, capacity=100, backend="fifo")
            await table.insert(rows(range(60)))
            numbers: list[int] = []
            async with table.sampler(2, prefetch=2, device="cpu") as sampler:
                while len(numbers) < 40:
                    drawn = asyncio.ensure_future(anext(sampler))
                    await asyncio.sleep(0)
                    drawn.cancel()
                    await asyncio.wait((drawn,))
                    assert sampler.in_flight <= 3
                    numbers += (await anext(sampler))["number"].tolist()
            assert numbers == list(range(40))
            await table.drop()

    asyncio.run(main())


def test_rows_of_several_tables_come_as_tensors(server: ServerProcess) -> None:
    async def main() -> None:
        async with aio.ReplayClient(server.address) as client:
            tables = [await client.create_table(f"mixed-{each}", columns=COLUMNS, capacity=100) for each in "ab"]
            for table in tables:
                await table.insert(rows(range(20)))
            async with await client.mixed_sampler({"mixed-a": 6, "mixed-b": 2}, beta=0.4, device="meta") as sampler:
                assert isinstance(sampler, MixedTensorSampler)
                batch = await anext(sampler)
                assert batch["obs"].device == batch.parts["mixed-b"].weights.device == torch.device("meta")
                assert batch.tables.tolist() == [0] * 6 + [1] * 2
                await sampler.update_priorities(batch, torch.as_tensor(batch.tables) + 5.0)
            for number, table in enumerate(tables):
                read = await table.read(batch.parts[table.name])
                assert (read.priorities == number + 5.0).all()
                await table.drop()

    asyncio.run(main())


def test_a_sampler_that_is_forgotten_sends_its_updates_and_ends(server: ServerProcess) -> None:
    async def main() -> None:
        async with aio.ReplayClient(server.address) as client:
            queue = await client.create_table("queue", columns=COLUMNS, capacity=100, backend="fifo")
            table = await client.create_table("priorities", columns=COLUMNS, capacity=100)
            for each in (queue, table):
                await each.insert(rows(range(4)))
            waiting = queue.sampler(4, device="cpu", timeout_s=math.inf)
            sampler = table.sampler(4, beta=0.4, device="cpu")
            await anext(waiting)
            await sampler.update_priorities(await anext(sampler), [7.0] * 4)
            while not (await queue.stats()).waits:
                await asyncio.sleep(0.01)
            with pytest.warns(ResourceWarning, match="unclosed sampler for device cpu: .* of table 'queue'"):
                del waiting
            with pytest.warns(ResourceWarning, match="unclosed sampler for device cpu: .* of table 'priorities'"):
                del sampler
            while (await queue.stats()).waits or (await table.stats()).largest_priority != 7.0:
                await asyncio.sleep(0.01)
            while "replay-to-device" in {task.get_name() for task in asyncio.all_tasks()}:
                await asyncio.sleep(0.01)
            await queue.drop()
            await table.drop()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
