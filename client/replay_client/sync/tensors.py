"""Samplers that prefetch batches to a device."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from replay_client._learning.handle import ThreadSampler
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
from replay_client._transport.interrupts import wait_for_change
from replay_client._transport.unclosed import Lease, finish_at_exit, finish_in_thread
from replay_client.errors import DeadlineExceededError, ReplayError
from replay_client.sync.mixed_sampler import MixedSampler
from replay_client.sync.sampler import Sampler

log = logging.getLogger(__name__)

_AHEAD: Final = 1
"""Batches prefetched to the device. One is enough to hide the copy; more would delay updates further."""


class TensorSampler(TensorHandle, ThreadSampler):
    """A `Sampler` that prefetches batches to a device. For use in one thread.

    A background thread fetches batches from the sampler and copies them to the device while the learner computes.
    Updates are sent with that thread's next request, so a draw misses the last `prefetch` updates, one more than with
    `Sampler`.
    """

    _sampler: Sampler | MixedSampler

    def __init__(self, sampler: Sampler | MixedSampler, device: Device) -> None:
        """Take ownership of a sampler; the first `next()` starts the thread."""
        super().__init__(sampler, device)
        self._ahead = _Ahead(sampler, self._copies)
        self._lease = Lease(self._ahead)

    @property
    def in_flight(self) -> int:
        """Batches requested but not yet returned, including those on the device."""
        return self._ahead.in_flight

    def __next__(self) -> TensorBatch:
        """Return the next batch, ready for use in the device's current stream. Raises like `Sampler`."""
        with self._one_caller.turn():
            return self._copies.usable(*self._ahead.take())

    def update_priorities(self, batch_or_keys: BatchOrKeys | MixedKeys, priorities: ArrayLike) -> None:
        """Update priorities; see `Sampler.update_priorities`.

        If a device is still computing the tensor, this call does not wait for it; if the tensor turns out to be
        invalid, a later call raises. This call may also raise the refusal of an earlier request.
        """
        self._ahead.set_priorities(*self._taken(batch_or_keys, priorities))

    def update(self, keys: ArrayLike, columns: Mapping[str, Any]) -> None:
        """Write mutable columns again; see `Sampler.update`. Waits for values that a device is still computing.

        A sampler of several tables refuses this: use `Table.update`.
        """
        checked = self._checked_update(keys, columns)
        assert isinstance(self._sampler, Sampler)
        self._ahead.keep(partial(self._sampler._write, *checked))

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all updates are acknowledged; see `Sampler.flush`."""
        with self._one_caller.turn():
            self._ahead.flush(self._sampler.deadline(timeout_s))

    def close(self, *, timeout_s: float | None = None) -> None:
        """Flush and close; see `Sampler.close`."""
        if self._ahead.is_closed:
            return
        try:
            if self._ahead.unacknowledged:
                self.flush(timeout_s=timeout_s)
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Close without a flush: unacknowledged updates may be lost."""
        self._ahead.cancel()


class _Ahead(AheadBase[None]):
    """Fetches batches ahead of a learner, in a thread; ends if nobody closes the `TensorSampler`; see `Work`."""

    _sampler: Sampler | MixedSampler

    def __init__(self, sampler: Sampler | MixedSampler, copies: DeviceCopies) -> None:
        super().__init__(sampler, copies)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._ready: deque[tuple[TensorBatch, torch.cuda.Event | None]] = deque()
        self._moving = 0  # batches being copied to the device: 0 or 1
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._is_fetching = False
        self._is_paused = False
        self._owner = os.getpid()
        finish_at_exit(self)

    @property
    def is_done(self) -> bool:
        """See `Work`. Without a thread and updates, only the sampler is left, which has a lease of its own."""
        return self.is_closed or self._owner != os.getpid() or not (self._is_fetching or self._updates)

    @property
    def in_flight(self) -> int:
        """Batches requested but not yet taken."""
        with self._lock:
            return self._sampler.in_flight + self._moving + len(self._ready)

    def take(self) -> tuple[TensorBatch, torch.cuda.Event | None]:
        """Wait for the next batch, and for `DeviceCopies.usable` to make it usable."""
        self._start()
        with self._lock:
            while not self._ready:
                self.check()
                wait_for_change(self._changed, None)
            made = self._ready.popleft()
            self._changed.notify_all()
        return made

    def set_priorities(self, keys: Any, priorities: NDArray[np.float64] | Computed) -> None:
        """Keep new priorities for the next request."""

        def hand_over() -> None:
            values = self._copies.fetched(priorities) if isinstance(priorities, Computed) else priorities
            self._sampler.update_priorities(keys, values)

        self.keep(hand_over)

    def keep(self, update: Callable[[], None]) -> None:
        """Keep an update for the next request; ``update`` hands it over to the sampler."""
        with self._lock:
            self.check()
            self._updates.append(update)

    def flush(self, deadline: float) -> None:
        """See `Sampler.flush`."""
        self._pause(deadline)
        self._hand_over()
        self._sampler.flush(timeout_s=max(0.0, deadline - time.monotonic()))

    def cancel(self, deadline: float = math.inf) -> None:
        """Close without a flush, even while the thread waits, and wait for its end until the deadline."""
        self.is_closed = True
        self._sampler.cancel(is_waited_for=True)
        with suppress(DeadlineExceededError):
            self._pause(deadline)
        self._sampler.cancel()

    def dropped(self) -> None:
        """See `Work`."""
        finish_in_thread(self)

    def deliver(self, deadline: float) -> None:
        """See `Work`."""
        try:
            if self.unacknowledged:
                self.flush(deadline)
        except ReplayError as error:
            log.debug("the updates of the %s were not acknowledged: %s", self.title, error)

    def finish(self, deadline: float) -> None:
        """See `Work`."""
        if self.is_done:
            return
        try:
            self.deliver(deadline)
        finally:
            if left := self.unacknowledged:
                log.warning(LOST, left, self.title)
            self.cancel(deadline)

    def _start(self) -> None:
        with self._lock:
            self.check()
            self._is_paused = False
            if not self._is_fetching:
                self._is_fetching = True
                self._thread = threading.Thread(target=self._fetch, name="replay-to-device", daemon=True)
                self._thread.start()

    def _pause(self, deadline: float) -> None:
        """Stop the thread. Finished batches are kept, and the next call of `next()` starts another thread.

        Raises:
            DeadlineExceededError: the thread is still waiting for a batch.
        """
        with self._lock:
            self._is_paused = True
            self._changed.notify_all()
            while self._is_fetching and self._thread is not None and self._thread.is_alive():  # not after a fork
                left = left_s(deadline)
                if left == 0:
                    raise DeadlineExceededError("a batch requested earlier did not arrive in time")
                wait_for_change(self._changed, left)
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise `ClosedError` if the sampler was closed, or what the thread has failed with."""
        super().check()
        error, self._error = self._error, None
        if error is not None:
            raise error  # the thread has ended; calling again retries

    def _fetch(self) -> None:
        """Keep a batch ready until paused; runs in the background thread."""
        while True:
            with self._lock:
                while not self._is_paused and len(self._ready) >= _AHEAD:
                    self._changed.wait()
                if self._is_paused:
                    self._end_fetching()
                    return
            try:
                self._hand_over()
                batch = next(self._sampler)
                self._moving = 1
                made = self._copies.to_device(batch)
            except Exception as error:
                with self._lock:
                    self._error, self._moving = error, 0
                    self._end_fetching()
                return
            with self._lock:
                self._ready.append(made)
                self._moving = 0
                self._changed.notify_all()

    def _end_fetching(self) -> None:
        self._is_fetching = False
        self._changed.notify_all()

    def _hand_over(self) -> None:
        while self._updates:
            try:
                self._updates[0]()
            finally:
                self._updates.popleft()  # not earlier: `close` must see each update here or in the sampler


class MixedTensorSampler(TensorSampler):
    """A `MixedSampler` that prefetches batches to a device; see `TensorSampler`."""

    def __next__(self) -> MixedTensorBatch:
        """Return the next batch; see `TensorSampler`."""
        batch = super().__next__()
        assert isinstance(batch, MixedTensorBatch)
        return batch
