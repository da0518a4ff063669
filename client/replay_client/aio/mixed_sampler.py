"""Samplers of several tables; see `replay_client.sync.mixed_sampler`.

async with await client.mixed_sampler({"online": 128, "demo": 128}, beta=0.4) as sampler:
    async for batch in sampler:
        await sampler.update_priorities(batch, await learn(batch))
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from numpy.typing import ArrayLike

from replay_client._learning.handle import LoopSampler
from replay_client._learning.mixed import MixedHandle, MixedKeys
from replay_client._rows.columns import Columns
from replay_client.aio.sampler import Sampler
from replay_client.batch import MixedBatch


class MixedSampler(MixedHandle[Sampler], LoopSampler):
    """An endless iterator over batches; see `replay_client.MixedSampler`. For use in one task at a time."""

    async def __anext__(self) -> MixedBatch:
        """Return the oldest batch in flight, and request another one; see `replay_client.MixedSampler`."""
        with self._one_caller.turn():
            undrawn = self._undrawn()
            for sampler in undrawn:
                await sampler.request()
            for sampler in undrawn:
                self._drawn.append(await anext(sampler))
            return self._joined()

    async def update_priorities(self, batch: Columns[Any] | MixedKeys, priorities: ArrayLike) -> None:
        """Update priorities in the tables of the rows; see `replay_client.MixedSampler.update_priorities`."""
        for sampler, keys, values in self._updates(batch, priorities):
            await sampler.update_priorities(keys, values)

    async def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all updates are acknowledged; see `replay_client.Sampler.flush`."""
        deadline = self.deadline(timeout_s)
        for sampler in self.samplers.values():
            await sampler.flush(timeout_s=max(0.0, deadline - time.monotonic()))

    async def close(self, *, timeout_s: float | None = None) -> None:
        """Flush and close; see `replay_client.Sampler.close`."""
        async with AsyncExitStack() as closing:  # closes all, whatever raises
            closing.callback(self.cancel)
            deadline = self.deadline(timeout_s)
            for sampler in self.samplers.values():
                closing.push_async_callback(partial(_close, sampler, deadline))

    def cancel(self) -> None:
        """Close without a flush: unacknowledged updates may be lost."""
        for sampler in self.samplers.values():
            sampler.cancel()


async def _close(sampler: Sampler, deadline: float) -> None:
    await sampler.close(timeout_s=max(0.0, deadline - time.monotonic()))
