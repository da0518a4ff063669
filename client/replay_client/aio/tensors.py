"""Samplers that prefetch batches to a device; see `replay_client.sync.tensors`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from replay_client._learning.handle import LoopSampler
from replay_client._learning.mixed import MixedKeys
from replay_client._learning.tensors import (
    LOST,
    AheadBase,
    Computed,
    Device,
    DeviceCopies,
    MixedTensorBatch,
    TensorBatch,
    TensorHandle,
)
from replay_client._rows.columns import BatchOrKeys
from replay_client._transport.call import left_s
from replay_client._transport.unclosed import FINISH_S, Lease
from replay_client.aio.mixed_sampler import MixedSampler
from replay_client.aio.sampler import Sampler, retrieve
from replay_client.errors import DeadlineExceededError, ReplayError

log = logging.getLogger(__name__)

_Made = tuple[TensorBatch, torch.cuda.Event | None]


class TensorSampler(TensorHandle, LoopSampler):
    """A `Sampler` that prefetches batches to a device. For use in one task at a time.

    A background task receives the next batch and copies it to the device while the learner computes. Updates are sent
    with that task's next request, so a draw misses the last `prefetch` updates, one more than with `Sampler`. Waits
    for the device happen in a thread, not on the event loop.
    """

    _sampler: Sampler | MixedSampler

    def __init__(self, sampler: Sampler | MixedSampler, device: Device) -> None:
        """Take ownership of a sampler; the first batch starts the task."""
        super().__init__(sampler, device)
        self._ahead = _Ahead(sampler, self._copies)
        self._lease = Lease(self._ahead)

    @property
    def in_flight(self) -> int:
        """Batches requested but not yet returned, including the one on its way to the device."""
        return self._sampler.in_flight + self._ahead.held

    async def __anext__(self) -> TensorBatch:
        """Return the next batch, ready for use in the device's current stream; see `Sampler`."""
        with self._one_caller.turn():
            return self._copies.usable(*await self._ahead.take())

    async def update_priorities(self, batch_or_keys: BatchOrKeys | MixedKeys, priorities: ArrayLike) -> None:
        """Update priorities; see `replay_client.torch.TensorSampler.update_priorities`."""
        self._ahead.check()
        self._ahead.set_priorities(*self._taken(batch_or_keys, priorities))

    async def update(self, keys: ArrayLike, columns: Mapping[str, Any]) -> None:
        """Write mutable columns again; see `replay_client.torch.TensorSampler.update`."""
        checked = self._checked_update(keys, columns)
        assert isinstance(self._sampler, Sampler)
        self._ahead.keep(partial(self._sampler.update, *checked))

    async def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all updates are acknowledged; see `replay_client.Sampler.flush`."""
        with self._one_caller.turn():
            self._ahead.check()
            await self._ahead.flush(self._sampler.deadline(timeout_s))

    async def close(self, *, timeout_s: float | None = None) -> None:
        """Flush and close. Idempotent; see `replay_client.Sampler.close`."""
        if self._ahead.is_closed:
            return
        try:
            if self._ahead.unacknowledged:
                await self.flush(timeout_s=timeout_s)
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Close without a flush: unacknowledged updates may be lost."""
        self._ahead.cancel()


class _Ahead(AheadBase[Awaitable[None]]):
    """Fetches batches ahead of a learner, in a task; ends if nobody closes the `TensorSampler`; see `Work`."""

    _sampler: Sampler | MixedSampler

    def __init__(self, sampler: Sampler | MixedSampler, copies: DeviceCopies) -> None:
        super().__init__(sampler, copies)
        self._fetching: asyncio.Task[_Made] | None = None
        self._finisher: asyncio.Task[None] | None = None
        self.held = 0
        """Batches received from the sampler and not taken: 0 or 1."""

    @property
    def is_done(self) -> bool:
        """See `Work`. Without a task, only the sampler is left, which has a lease of its own."""
        return self.is_closed or self._fetching is None

    async def take(self) -> _Made:
        """Wait for the next batch, and for `DeviceCopies.usable` to make it usable; begin to fetch the one after it."""
        self.check()
        fetching = self._fetching or self._begin()
        await asyncio.wait((fetching,))  # if this is canceled, the next call returns the batch
        self.check()
        self._fetching = None
        made = fetching.result()
        self.held = 0
        self._begin()
        return made

    async def flush(self, deadline: float) -> None:
        """See `Sampler.flush`."""
        if self._fetching is not None:
            await asyncio.wait((self._fetching,), timeout=left_s(deadline))
            if not self._fetching.done():
                raise DeadlineExceededError("a batch requested earlier did not arrive in time")
        await self._hand_over()
        await self._sampler.flush(timeout_s=max(0.0, deadline - time.monotonic()))

    def cancel(self) -> None:
        """Close without a flush."""
        self.is_closed = True
        self._sampler.cancel()
        if self._fetching is not None:
            self._fetching.cancel()

    def dropped(self) -> None:
        """See `Work`."""
        assert self._fetching is not None
        with suppress(RuntimeError):  # the loop is closed
            self._fetching.get_loop().call_soon_threadsafe(self._finish_soon)

    def _finish_soon(self) -> None:
        self._finisher = asyncio.create_task(self._finish(), name="replay-finishes")

    async def _finish(self) -> None:
        try:
            if self.unacknowledged:
                await self.flush(time.monotonic() + FINISH_S)
        except ReplayError as error:
            log.debug("the updates of the %s were not acknowledged: %s", self.title, error)
        finally:
            if left := self.unacknowledged:
                log.warning(LOST, left, self.title)
            self.cancel()

    def _begin(self) -> asyncio.Task[_Made]:
        """Begin to fetch the next batch."""
        self._fetching = asyncio.create_task(self._fetch(), name="replay-to-device")
        self._fetching.add_done_callback(retrieve)
        return self._fetching

    async def _fetch(self) -> _Made:
        await self._hand_over()
        batch = await anext(self._sampler)
        self.held = 1
        if self._copies.device.type == "cpu":
            return self._copies.to_device(batch)  # without a copy
        return await asyncio.to_thread(self._copies.to_device, batch)

    def set_priorities(self, keys: Any, priorities: NDArray[np.float64] | Computed) -> None:
        """Keep new priorities for the next request."""

        async def hand_over() -> None:
            if isinstance(priorities, Computed):
                await self._sampler.update_priorities(keys, await asyncio.to_thread(self._copies.fetched, priorities))
            else:
                await self._sampler.update_priorities(keys, priorities)

        self.keep(hand_over)

    def keep(self, update: Callable[[], Awaitable[None]]) -> None:
        """Keep an update for the next request; ``update`` hands it over to the sampler."""
        self.check()
        self._updates.append(update)

    async def _hand_over(self) -> None:
        while self._updates:
            try:
                await self._updates[0]()
            except Exception:  # but an update is kept if the task was canceled meanwhile
                self._updates.popleft()
                raise
            self._updates.popleft()


class MixedTensorSampler(TensorSampler):
    """A `MixedSampler` that prefetches batches to a device; see `TensorSampler`."""

    async def __anext__(self) -> MixedTensorBatch:
        """Return the next batch; see `TensorSampler`."""
        batch = await super().__anext__()
        assert isinstance(batch, MixedTensorBatch)
        return batch
