"""The client for asyncio: the API of `replay_client` with ``await`` and ``async for``.

    async with aio.ReplayClient("localhost:50051") as client:
        table = await client.create_table("cartpole", columns={"obs": Column("float32", 4), ...}, capacity=1_000_000)
        keys = await table.insert({"obs": obs, ...})
        async with table.sampler(256, beta=0.4) as sampler:
            async for batch in sampler:
                await sampler.update_priorities(batch, await learn(batch))

Names, options, results, errors and time limits are those of `replay_client`. A client belongs to the event loop on
which it was first used. A pickled or copied client or table belongs to the loop that uses it first.

Any call may be canceled. It has then taken effect once or not at all, and all objects stay usable. A canceled `insert`
may have been applied. A canceled `append` has not appended its row. If ``async for`` is canceled while it waits for
a batch, the next ``async for`` returns that batch.
"""

from replay_client.aio.client import ReplayClient
from replay_client.aio.mixed_sampler import MixedSampler
from replay_client.aio.row_reader import RowReader
from replay_client.aio.sampler import Sampler
from replay_client.aio.table import Table
from replay_client.aio.writer import Writer, WriterStream

__all__ = ["MixedSampler", "ReplayClient", "RowReader", "Sampler", "Table", "Writer", "WriterStream"]
