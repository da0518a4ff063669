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
from typing import Any, Final, NoReturn

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from replay_client._learning.mixed import MixedKeys
from replay_client._learning.one_caller import OneCaller
from replay_client._learning.tensors import Computed, Device, DeviceCopies, MixedTensorBatch, TensorBatch
from replay_client._rows.columns import BatchOrKeys
from replay_client._transport.call import left_s
from replay_client._transport.interrupts import wait_for_change
from replay_client._transport.unclosed import Lease, finish_at_exit, finish_in_thread
from replay_client.draws import Prefetch
from replay_client.errors import ClosedError, DeadlineExceededError, InvalidArgumentError, ReplayError
from replay_client.sync.mixed_sampler import MixedSampler
from replay_client.sync.sampler import Sampler

log = logging.getLogger(__name__)

_AHEAD: Final = 1
"""Batches prefetched to the device. One is enough to hide the copy; more would delay updates further."""
LOST: Final = "%d messages of updates may be lost: nobody closed the %s"
"""Logged when an unclosed sampler ends."""


class TensorSampler:
    """A `Sampler` that prefetches batches to a device. For use in one thread.

    A background thread fetches batches from the sampler and copies them to the device while the learner computes.
    Updates are sent with that thread's next request, so a draw misses the last `prefetch` updates, one more than with
    `Sampler`.
    """

    def __init__(self, sampler: Sampler | MixedSampler, device: Device) -> None:
        """Take ownership of a sampler; the first `next()` starts the thread."""
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
        """Number of batches in flight while the thread waits for the next one, at least 1. May be set to "auto"."""
        return self._sampler.prefetch

    @prefetch.setter
    def prefetch(self, prefetch: Prefetch) -> None:
        self._sampler.prefetch = prefetch

    @property
    def in_flight(self) -> int:
        """Batches requested but not yet returned, including those on the device."""
        return self._ahead.in_flight

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

    def __iter__(self) -> TensorSampler:
        return self

    def __next__(self) -> TensorBatch:
        """Return the next batch, ready for use in the device's current stream.

        Raises:
            ReplayError: as for `Sampler`.
        """
        with self._one_caller.turn():
            return self._copies.usable(*self._ahead.take())

    def update_priorities(self, batch_or_keys: BatchOrKeys | MixedKeys, priorities: ArrayLike) -> None:
        """Update priorities; see `Sampler.update_priorities`.

        Args:
            batch_or_keys: a batch, or keys int64[n]. For duplicate keys, the last priority counts.
            priorities: finite absolute TD errors float64[n], as an array or a tensor. If a device is still computing
                the tensor, this call does not wait for it; if the tensor turns out to be invalid, a later call raises.

        Raises:
            InvalidArgumentError: the keys or the priorities are invalid.
            ReplayError: an earlier request was refused.
        """
        keys = self._sampler._keys_of(batch_or_keys)  # type: ignore[arg-type]  # it refuses keys of the other kind
        values = self._sampler._combined(batch_or_keys, priorities)
        self._ahead.set_priorities(keys, self._copies.taken(values, len(keys)))

    def update(self, keys: ArrayLike, columns: Mapping[str, Any]) -> None:
        """Write mutable columns again; see `Sampler.update`. Waits for values that a device is still computing.

        Raises:
            InvalidArgumentError: as for `Sampler.update`; or this sampler has several tables: use `Table.update`.
            ReplayError: an earlier request was refused.
        """
        if isinstance(self._sampler, MixedSampler):
            raise InvalidArgumentError.of_field("update", "a sampler of one table, or Table.update", repr(self))
        self._ahead.keep(partial(self._sampler._write, *self._sampler._checked_update(keys, columns)))

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
            self._ahead.cancel()

    def __enter__(self) -> TensorSampler:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Flush and close. After an error in the block, only close."""
        if error is None:
            self.close()
        else:
            self._ahead.cancel()


class _Ahead:
    """Fetches batches ahead of a learner, in a thread; ends if nobody closes the `TensorSampler`; see `Work`."""

    def __init__(self, sampler: Sampler | MixedSampler, copies: DeviceCopies) -> None:
        self._sampler = sampler
        self._copies = copies
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._ready: deque[tuple[TensorBatch, torch.cuda.Event | None]] = deque()
        self._updates: deque[Callable[[], None]] = deque()
        self._moving = 0  # batches being copied to the device: 0 or 1
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._is_fetching = False
        self._is_paused = False
        self._owner = os.getpid()
        self.is_closed = False
        """Whether the sampler was closed."""
        finish_at_exit(self)

    @property
    def title(self) -> str:
        """See `Work`."""
        return f"sampler for device {self._copies.device}: {self._sampler!r}"

    @property
    def is_done(self) -> bool:
        """See `Work`. Without a thread and updates, only the sampler is left, which has a lease of its own."""
        return self.is_closed or self._owner != os.getpid() or not (self._is_fetching or self._updates)

    @property
    def in_flight(self) -> int:
        """Batches requested but not yet taken."""
        with self._lock:
            return self._sampler.in_flight + self._moving + len(self._ready)

    @property
    def unacknowledged(self) -> int:
        """Number of messages with unacknowledged updates; each update that was not handed over counts, too."""
        return len(self._updates) + self._sampler.unacknowledged

    def take(self) -> tuple[TensorBatch, torch.cuda.Event | None]:
        """Wait for the next batch, and for `DeviceCopies.usable` to make it usable."""
        self._start()
        with self._lock:
            while not self._ready:
                self._check()
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
            self._check()
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
            self._check()
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

    def _check(self) -> None:
        if self.is_closed:
            raise ClosedError("this sampler is closed")
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

    def __iter__(self) -> MixedTensorSampler:
        return self

    def __next__(self) -> MixedTensorBatch:
        """Return the next batch, ready for use in the device's current stream.

        Raises:
            ReplayError: as for `MixedSampler`.
        """
        batch = super().__next__()
        assert isinstance(batch, MixedTensorBatch)
        return batch
