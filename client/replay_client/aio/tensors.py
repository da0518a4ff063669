"""Samplers that prefetch batches to a device; see `replay_client.sync.tensors`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from replay_client._learning.mixed import MixedKeys
from replay_client._learning.one_caller import OneCaller
from replay_client._learning.tensors import Computed, Device, DeviceCopies, MixedTensorBatch, TensorBatch
from replay_client._rows.columns import BatchOrKeys
from replay_client._transport.call import left_s
from replay_client._transport.unclosed import FINISH_S, Lease
from replay_client.aio.mixed_sampler import MixedSampler
from replay_client.aio.sampler import Sampler
from replay_client.draws import Prefetch
from replay_client.errors import ClosedError, DeadlineExceededError, InvalidArgumentError, ReplayError
from replay_client.sync.tensors import LOST

log = logging.getLogger(__name__)

_Made = tuple[TensorBatch, torch.cuda.Event | None]


class TensorSampler:
    """A `Sampler` that prefetches batches to a device. For use in one task at a time.

    A background task receives the next batch and copies it to the device while the learner computes. Updates are sent
    with that task's next request, so a draw misses the last `prefetch` updates, one more than with `Sampler`. Waits
    for the device happen in a thread, not on the event loop.
    """

    def __init__(self, sampler: Sampler | MixedSampler, device: Device) -> None:
        """Take ownership of a sampler; the first batch starts the task."""
        self._copies = DeviceCopies(device)
        self.device = self._copies.device
        """Device of the batches."""
        self._sampler = sampler
        self._one_caller = OneCaller("sampler")
        self._ahead = _Ahead(sampler, self._copies)
        self._lease = Lease(self._ahead)

    @property
    def batch_size(self) -> int:
        """Rows of each batch; for another number, create another sampler."""
        return self._sampler.batch_size

    @property
    def beta(self) -> float:
        """Exponent of the weights for future requests."""
        return self._sampler.beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._sampler.beta = beta

    @property
    def prefetch(self) -> int:
        """Number of batches in flight while the task waits, at least 1. May be set to "auto"."""
        return self._sampler.prefetch

    @prefetch.setter
    def prefetch(self, prefetch: Prefetch) -> None:
        self._sampler.prefetch = prefetch

    @property
    def in_flight(self) -> int:
        """Batches requested but not yet returned, including the one on its way to the device."""
        return self._sampler.in_flight + self._ahead.held

    @property
    def updated(self) -> int:
        """Number of rows updated so far, according to the server's replies."""
        return self._sampler.updated

    @property
    def stale(self) -> int:
        """Number of stale keys so far, according to the server's replies."""
        return self._sampler.stale

    def __reduce__(self) -> NoReturn:
        self._sampler.__reduce__()

    def __aiter__(self) -> TensorSampler:
        return self

    async def __anext__(self) -> TensorBatch:
        """Return the next batch, ready for use in the device's current stream.

        Raises:
            ConcurrentUseError: another task waits for this call or for `flush`.
            ReplayError: as for `Sampler`.
        """
        with self._one_caller.turn():
            return self._copies.usable(*await self._ahead.take())

    async def update_priorities(self, batch_or_keys: BatchOrKeys | MixedKeys, priorities: ArrayLike) -> None:
        """Update priorities; see `replay_client.torch.TensorSampler.update_priorities`."""
        self._ahead.check()
        keys = self._sampler._keys_of(batch_or_keys)  # type: ignore[arg-type]  # it refuses keys of the other kind
        values = self._sampler._combined(batch_or_keys, priorities)
        self._ahead.set_priorities(keys, self._copies.taken(values, len(keys)))

    async def update(self, keys: ArrayLike, columns: Mapping[str, Any]) -> None:
        """Write mutable columns again; see `replay_client.torch.TensorSampler.update`."""
        if isinstance(self._sampler, MixedSampler):
            raise InvalidArgumentError.of_field("update", "a sampler of one table, or Table.update", repr(self))
        self._ahead.check()
        self._ahead.updates.append(partial(self._sampler.update, *self._sampler._checked_update(keys, columns)))

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

    async def __aenter__(self) -> TensorSampler:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Flush and close. After an error in the block, only close."""
        if error is None:
            await self.close()
        else:
            self.cancel()


class _Ahead:
    """Fetches batches ahead of a learner, in a task; ends if nobody closes the `TensorSampler`; see `Work`."""

    def __init__(self, sampler: Sampler | MixedSampler, copies: DeviceCopies) -> None:
        self._sampler = sampler
        self._copies = copies
        self._fetching: asyncio.Task[_Made] | None = None
        self._finisher: asyncio.Task[None] | None = None
        self.updates: deque[Callable[[], Awaitable[None]]] = deque()
        """Updates for the next request: keys and priorities."""
        self.held = 0
        """Batches received from the sampler and not taken: 0 or 1."""
        self.is_closed = False
        """Whether the sampler was closed."""

    @property
    def title(self) -> str:
        """See `Work`."""
        return f"sampler for device {self._copies.device}: {self._sampler!r}"

    @property
    def is_done(self) -> bool:
        """See `Work`. Without a task, only the sampler is left, which has a lease of its own."""
        return self.is_closed or self._fetching is None

    @property
    def unacknowledged(self) -> int:
        """Number of messages with unacknowledged updates; each update that was not handed over counts, too."""
        return len(self.updates) + self._sampler.unacknowledged

    def check(self) -> None:
        """Raise `ClosedError` if the sampler was closed."""
        if self.is_closed:
            raise ClosedError("this sampler is closed")

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
        self._fetching.add_done_callback(_retrieve)
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

        self.updates.append(hand_over)

    async def _hand_over(self) -> None:
        while self.updates:
            try:
                await self.updates[0]()
            except Exception:  # but an update is kept if the task was canceled meanwhile
                self.updates.popleft()
                raise
            self.updates.popleft()


class MixedTensorSampler(TensorSampler):
    """A `MixedSampler` that prefetches batches to a device; see `TensorSampler`."""

    def __aiter__(self) -> MixedTensorSampler:
        return self

    async def __anext__(self) -> MixedTensorBatch:
        """Return the next batch, ready for use in the device's current stream.

        Raises:
            ReplayError: as for `MixedSampler`.
        """
        batch = await super().__anext__()
        assert isinstance(batch, MixedTensorBatch)
        return batch


def _retrieve(task: asyncio.Task[_Made]) -> None:
    """Mark a task's error as retrieved, so that asyncio does not log it.

    The sampler's next call raises the error, unless the sampler was closed.
    """
    if not task.cancelled():
        task.exception()
