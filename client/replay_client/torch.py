"""Batches as torch tensors on a device. The only module here that imports torch.

    from replay_client.torch import to_torch

    batch = next(sampler)
    tensors = to_torch(batch, device)
    loss = (tensors.weights * huber(network(tensors["obs"]), ...)).mean()
    sampler.update_priorities(batch, td_errors)

On the CPU tensors share the memory of the batch's arrays: nothing is copied. For a CUDA device the columns go through
pinned memory, so that the copy to the device runs beside whatever the device computes.

    with table.sampler(256, beta=0.4, device="cuda") as sampler:
        for tensors in sampler:                                   # on the device already
            sampler.update_priorities(tensors, td_errors)         # a tensor or an array

does the same in a thread, one batch ahead of the learner. A `TensorBatch` is a mapping of its columns, so that
``TensorDict(tensors, batch_size=tensors.batch_size).unflatten_keys("/")`` is what it says.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NoReturn

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from replay_client._rows.checks import as_array, checked_keys, checked_priorities
from replay_client._rows.columns import BatchOrKeys
from replay_client._transport.time_limits import left_s
from replay_client.batch import Batch, Drawn
from replay_client.errors import ClosedError, DeadlineExceededError
from replay_client.sampler import Sampler

Device = torch.device | str
"""A device, or its name."""

_AHEAD: Final = 1
"""Batches that are on the device before they are asked for. One hides the copy; each more would be one more update that
a draw does not know of."""


@dataclass(frozen=True, eq=False, repr=False)
class TensorBatch(Drawn[torch.Tensor]):
    """A batch as tensors on a device: all that a `Batch` has, with the keys as an array."""


def to_torch(batch: Batch, device: Device = "cpu") -> TensorBatch:
    """Put a batch on a device.

    Args:
        batch: as drawn.
        device: where to.

    Returns:
        Tensors; on the CPU they are views of the batch's arrays, elsewhere they may still be on their way, in the order
        of the device's current stream.
    """
    target = torch.device(device)
    return TensorBatch(
        row_keys=batch.row_keys,
        columns={name: _on_device(array, target) for name, array in batch.columns.items()},
        probabilities=_on_device(batch.probabilities, target),
        weights=_on_device(batch.weights, target),
        beta=batch.beta,
        size=batch.size,
        total_mass=batch.total_mass,
        smallest_probability=batch.smallest_probability,
        inserted=batch.inserted,
    )


def _on_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(np.require(array, requirements="W"))
    if device.type == "mps" and tensor.dtype is torch.float64:
        tensor = tensor.float()  # Apple's GPUs have no float64
    if device.type == "cpu":
        return tensor
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True, eq=False)
class _Computed:
    """Priorities on a device other than the CPU."""

    values: torch.Tensor
    done: torch.cuda.Event | None
    """Once it has happened, the values are there; None: looking at them waits for them."""


class TensorSampler:
    """A `Sampler` whose batches are tensors on a device before they are asked for. For one thread.

    A thread of its own takes batches from the sampler, copies their rows and puts them on the device, while the learner
    computes. An update handed over goes out with the request that the thread sends next, so a draw knows of one update
    less than `Sampler`'s: of all but the last `prefetch`.
    """

    def __init__(self, sampler: Sampler, device: Device) -> None:
        """Take over a sampler, which nobody else may use any more; the first `next()` starts the thread."""
        self.device = torch.device(device)
        """Where batches are."""
        self._sampler = sampler
        self._stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._changed = threading.Condition()
        self._ready: deque[tuple[TensorBatch, torch.cuda.Event | None]] = deque()
        self._updates: deque[tuple[NDArray[np.int64], NDArray[np.float64] | _Computed]] = deque()
        self._moving = 0  # batches that are being put on the device: 0 or 1
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._is_fetching = False
        self._is_paused = False
        self._is_closed = False

    @property
    def beta(self) -> float:
        """Exponent of the weights, for what is asked from now on."""
        return self._sampler.beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._sampler.beta = beta

    @property
    def prefetch(self) -> int:
        """How many batches are on their way to the thread while it waits; may be set, to at least 1."""
        return self._sampler.prefetch

    @prefetch.setter
    def prefetch(self, prefetch: int) -> None:
        self._sampler.prefetch = prefetch

    @property
    def in_flight(self) -> int:
        """Batches that were asked for and not returned yet, those on the device included."""
        with self._changed:
            return self._sampler.in_flight + self._moving + len(self._ready)

    @property
    def updated(self) -> int:
        """Rows whose priority was set, over all updates acknowledged so far."""
        return self._sampler.updated

    @property
    def stale(self) -> int:
        """Keys of updates that were not live any more, over all updates acknowledged so far."""
        return self._sampler.stale

    def __reduce__(self) -> NoReturn:
        """As for `Sampler`."""
        self._sampler.__reduce__()

    def __iter__(self) -> TensorSampler:
        """The sampler is its own iterator."""
        return self

    def __next__(self) -> TensorBatch:
        """The next batch, ready for what the device's current stream does from now on.

        Raises:
            ReplayError: as `Sampler`.
        """
        self._start()
        with self._changed:
            while not self._ready:
                self._check()
                self._changed.wait()
            tensors, copied = self._ready.popleft()
            self._changed.notify_all()
        if copied is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(copied)
            for tensor in (*tensors.columns.values(), tensors.probabilities, tensors.weights):
                tensor.record_stream(current)
        return tensors

    def update_priorities(self, batch_or_keys: BatchOrKeys, priorities: ArrayLike) -> None:
        """Hand over new priorities; see `Sampler.update_priorities`.

        Args:
            batch_or_keys: a batch, or int64[n]: keys of rows. Of a key given more than once, the last priority counts.
            priorities: float64[n]: the absolute TD errors, finite; an array, or a tensor. One on another device than
                the CPU is not waited for: if its values cannot be used, a later call says so.

        Raises:
            InvalidArgumentError: for anything else.
            ReplayError: an earlier request was refused.
        """
        keys = checked_keys(batch_or_keys)
        update = keys.copy(), self._taken(priorities, len(keys))  # the caller may go on using its arrays
        with self._changed:
            self._check()
            self._updates.append(update)

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until every update handed over so far is acknowledged; see `Sampler.flush`."""
        deadline = self._sampler.deadline(timeout_s)
        self._pause(deadline)
        self._hand_over()
        self._sampler.flush(timeout_s=max(0.0, deadline - time.monotonic()))

    def close(self, *, timeout_s: float | None = None) -> None:
        """Flush and end; see `Sampler.close`."""
        if self._is_closed:
            return
        try:
            if self._updates or self._sampler.unacknowledged:
                self.flush(timeout_s=timeout_s)
        finally:
            self._cancel()

    def __enter__(self) -> TensorSampler:
        """Use it in a ``with`` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Flush and end; after an error of the block only end."""
        if error is None:
            self.close()
        else:
            self._cancel()

    def _cancel(self) -> None:
        """End at once, whatever the thread waits for."""
        self._is_closed = True
        self._sampler.cancel(is_waited_for=True)
        self._pause(math.inf)
        self._sampler.cancel()

    def _start(self) -> None:
        with self._changed:
            self._check()
            self._is_paused = False
            if not self._is_fetching:
                self._is_fetching = True
                self._thread = threading.Thread(target=self._fetch, name="replay-to-device", daemon=True)
                self._thread.start()

    def _pause(self, deadline: float) -> None:
        """Let the thread end; what it has made ready stays, and the next `next()` starts another.

        Raises:
            DeadlineExceededError: it still waits for a batch.
        """
        with self._changed:
            self._is_paused = True
            self._changed.notify_all()
            while self._is_fetching and self._thread is not None and self._thread.is_alive():  # not after a fork
                left = left_s(deadline, time.monotonic())
                if left == 0:
                    raise DeadlineExceededError("a batch requested earlier did not arrive in time")
                self._changed.wait(left)
        if self._thread is not None:
            self._thread.join()

    def _check(self) -> None:
        if self._is_closed:
            raise ClosedError("this sampler is closed")
        error, self._error = self._error, None
        if error is not None:
            raise error  # the thread has ended; calling again tries again

    def _fetch(self) -> None:
        """Keep a batch ready until told to pause; runs in a thread of its own."""
        while True:
            with self._changed:
                while not self._is_paused and len(self._ready) >= _AHEAD:
                    self._changed.wait()
                if self._is_paused:
                    self._end_fetching()
                    return
            try:
                self._hand_over()
                batch = next(self._sampler)
                self._moving = 1
                made = self._to_device(batch)
            except Exception as error:
                with self._changed:
                    self._error, self._moving = error, 0
                    self._end_fetching()
                return
            with self._changed:
                self._ready.append(made)
                self._moving = 0
                self._changed.notify_all()

    def _end_fetching(self) -> None:
        self._is_fetching = False
        self._changed.notify_all()

    def _taken(self, priorities: ArrayLike, row_count: int) -> NDArray[np.float64] | _Computed:
        """A copy of priorities, checked, unless a device may still be computing them."""
        if not isinstance(priorities, torch.Tensor) or priorities.device.type == "cpu":
            return checked_priorities(priorities, row_count).copy()
        if self._stream is None or priorities.device != self._stream.device:
            return _Computed(priorities.detach().clone(), None)
        with torch.cuda.device(self._stream.device):
            values = priorities.detach().clone()
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return _Computed(values, done)

    def _hand_over(self) -> None:
        while self._updates:
            keys, priorities = self._updates.popleft()
            self._sampler.update_priorities(
                keys, self._fetched(priorities) if isinstance(priorities, _Computed) else priorities
            )

    def _fetched(self, priorities: _Computed) -> NDArray[Any]:
        if self._stream is None or priorities.done is None:
            return as_array(priorities.values)
        self._stream.wait_event(priorities.done)
        with torch.cuda.stream(self._stream):  # only this one is waited for
            return as_array(priorities.values)

    def _to_device(self, batch: Batch) -> tuple[TensorBatch, torch.cuda.Event | None]:
        if self._stream is None:
            return to_torch(batch, self.device), None
        with torch.cuda.stream(self._stream):
            tensors = to_torch(batch, self.device)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        return tensors, copied
