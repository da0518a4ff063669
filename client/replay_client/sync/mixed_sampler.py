"""Draws batches whose rows come from several tables.

    with client.mixed_sampler({"online": 128, "demo": 128}, beta=0.4) as sampler:
        for batch in sampler:
            td_errors = learn(batch["obs"], batch["action"], batch.weights)     # 256 rows
            imitate(batch.parts["demo"]["obs"], batch.parts["demo"]["action"])  # 128 of them, without a copy
            sampler.update_priorities(batch, td_errors)                         # each table gets its own priorities

There is one `Sampler` for each table, with a stream of its own. All samplers copy rows directly to their places in the
mixed batch.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from numpy.typing import ArrayLike

from replay_client._learning.handle import ThreadSampler
from replay_client._learning.mixed import MixedHandle, MixedKeys
from replay_client._rows.columns import Columns
from replay_client.batch import MixedBatch
from replay_client.sync.sampler import Sampler


class MixedSampler(MixedHandle[Sampler], ThreadSampler):
    """An endless iterator over batches of several tables. For use in one thread."""

    def __next__(self) -> MixedBatch:
        """Send updates and requests for another batch, and return the oldest batch in flight.

        Raises:
            ReplayError: as for `Sampler`, if one of the tables refuses to draw. The error's ``metadata`` has the name
                of the table. Calling again continues; what the other tables have drawn is kept.
        """
        with self._one_caller.turn():
            undrawn = self._undrawn()
            for sampler in undrawn:
                sampler.request()
            for sampler in undrawn:
                self._drawn.append(next(sampler))
            return self._joined()

    def update_priorities(self, batch: Columns[Any] | MixedKeys, priorities: ArrayLike) -> None:
        """Update priorities in the tables that the rows come from. The next call of `next()` or `flush` sends them.

        The batch is one of this sampler, or some of its rows, n in total. The priorities are finite absolute TD errors
        float64[n], as an array or a tensor. If a device is still computing the tensor, the call waits. If the batch or
        a priority is invalid, an `InvalidArgumentError` says so, and none is updated.
        """
        for sampler, keys, values in self._updates(batch, priorities):
            sampler.update_priorities(keys, values)

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all updates are acknowledged; see `Sampler.flush`."""
        deadline = self.deadline(timeout_s)
        for sampler in self.samplers.values():
            sampler.flush(timeout_s=max(0.0, deadline - time.monotonic()))

    def close(self, *, timeout_s: float | None = None) -> None:
        """Flush and close; see `Sampler.close`."""
        with ExitStack() as closing:  # closes all, whatever raises
            closing.callback(self.cancel)
            deadline = self.deadline(timeout_s)
            for sampler in self.samplers.values():
                closing.callback(lambda each: each.close(timeout_s=max(0.0, deadline - time.monotonic())), sampler)

    def cancel(self, *, is_waited_for: bool = False) -> None:
        """Close without a flush; see `Sampler.cancel`."""
        for sampler in self.samplers.values():
            sampler.cancel(is_waited_for=is_waited_for)
