"""Converts batches to tensors and copies them to devices. Samplers need only this part of `replay_client.torch`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, TypeVar, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from replay_proto.framing import Array

from replay_client._learning.handle import SamplerHandle
from replay_client._learning.mixed import MixedHandle, MixedKeys
from replay_client._learning.one_caller import OneCaller
from replay_client._rows.checks import as_array, checked_priorities
from replay_client._rows.columns import BatchOrKeys, MixedRows
from replay_client.batch import Batch, Drawn, MixedBatch
from replay_client.draws import Prefetch
from replay_client.errors import ClosedError, InvalidArgumentError

T = TypeVar("T")

Device = torch.device | str
"""A device, or its name."""
LOST: Final = "%d messages of updates may be lost: nobody closed the %s"
"""Logged when an unclosed sampler ends."""


def check_usable(device: Device) -> None:
    """Check that torch can use a device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError) as error:  # AssertionError: torch without CUDA
        got = f"{device!r}: {str(error).partition(chr(10))[0]}"
        raise InvalidArgumentError.of_field("device", "a device that torch can use here, such as 'cpu'", got) from error


@dataclass(frozen=True, eq=False, repr=False)
class TensorBatch(Drawn[torch.Tensor], MutableMapping[str, torch.Tensor]):
    """A `Batch` as tensors on a device; the keys remain a NumPy array.

    Columns can be replaced: ``tensors["obs"] = tensors["obs"].float() / 255``. The mapping must be mutable, because a
    `torch.utils.data.DataLoader` would convert an immutable one to a dict, without keys and weights.
    """

    columns: dict[str, torch.Tensor]

    def __setitem__(self, name: str, column: torch.Tensor) -> None:
        """Set a column, ``[batch, *shape]``.

        Raises:
            InvalidArgumentError: the column does not have one value per row.
        """
        is_ragged = self._positions is not None and self._positions.is_ragged
        if len(column) != self.batch_size and not (is_ragged and len(column) == self.offsets[-1]):
            expected = f"a tensor with {self.batch_size} rows; a DataLoader of batches needs batch_size=None"
            raise InvalidArgumentError.of_field(name, expected, f"{list(column.shape)}")
        self.columns[name] = column

    def __delitem__(self, name: str) -> None:
        del self.columns[name]


@dataclass(frozen=True, eq=False, repr=False)
class MixedTensorBatch(TensorBatch, MixedRows[torch.Tensor]):
    """A `MixedBatch` as tensors on a device."""

    tables: NDArray[np.int64]
    """int64[batch]: number of each row's table, from 0, in the order of `parts`. Always a NumPy array."""
    parts: Mapping[str, TensorBatch]
    """The rows of each table by name, as views of this batch."""


@overload
def to_torch(batch: MixedBatch | MixedTensorBatch, device: Device = ...) -> MixedTensorBatch: ...


@overload
def to_torch(batch: Batch | TensorBatch, device: Device = ...) -> TensorBatch: ...


def to_torch(batch: Batch | TensorBatch, device: Device = "cpu") -> TensorBatch:
    """Copy a batch of arrays or tensors to a device.

    On the CPU, the tensors share the memory of the batch. On other devices, the copy may still be running in the
    current stream.
    """
    target = torch.device(device)
    moved: dict[str, Any] = {
        "columns": {name: _on_device(column, target) for name, column in batch.columns.items()},
        "probabilities": _on_device(batch.probabilities, target),
        "weights": _on_device(batch.weights, target),
    }
    if not isinstance(batch, MixedBatch | MixedTensorBatch):
        return TensorBatch(**{**vars(batch), **moved})
    parts, start = {}, 0
    for name, part in batch.parts.items():
        rows = slice(start, start + part.batch_size)
        views = {
            "columns": {name: column[rows] for name, column in moved["columns"].items()},
            "probabilities": moved["probabilities"][rows],
            "weights": moved["weights"][rows],
        }
        parts[name] = TensorBatch(**{**vars(part), **views})
        start = rows.stop
    return MixedTensorBatch(**{**vars(batch), **moved, "parts": parts})


def _tensor_of(values: NDArray[Any]) -> torch.Tensor:
    """Return a tensor that shares the array's memory."""
    if values.dtype.name == "bfloat16":  # torch does not know NumPy's
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def _on_device(values: NDArray[Any] | torch.Tensor, device: torch.device) -> torch.Tensor:
    tensor = values if isinstance(values, torch.Tensor) else _tensor_of(np.require(values, requirements="W"))
    if device.type == "mps" and tensor.dtype is torch.float64:
        tensor = tensor.float()  # Apple's GPUs have no float64
    if device.type == "cpu":
        return tensor
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True, eq=False)
class Computed:
    """Priorities that a device other than the CPU may still be computing."""

    values: torch.Tensor
    done: torch.cuda.Event | None
    """Signals that the values are ready; None: reading the values waits for the device."""


class DeviceCopies:
    """Copies batches to a device and priorities from it, concurrently with the device's current stream."""

    def __init__(self, device: Device) -> None:
        self.device: Final = torch.device(device)
        """The device."""
        self._stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def to_device(self, batch: Batch) -> tuple[TensorBatch, torch.cuda.Event | None]:
        """Copy a batch. Return its tensors, and an event that signals the end of the copy, or None if it has ended."""
        if self._stream is None:
            return to_torch(batch, self.device), None
        with torch.cuda.stream(self._stream):
            tensors = to_torch(batch, self.device)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        return tensors, copied

    def usable(self, tensors: TensorBatch, copied: torch.cuda.Event | None) -> TensorBatch:
        """Have the current stream of the device wait for the copy of a batch, and return the batch."""
        if copied is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(copied)
            for tensor in (*tensors.columns.values(), tensors.probabilities, tensors.weights):
                tensor.record_stream(current)
        return tensors

    def taken(self, priorities: ArrayLike, row_count: int) -> NDArray[np.float64] | Computed:
        """Copy priorities, float64[row_count]. Check them as well, unless a device may still be computing them."""
        if not isinstance(priorities, torch.Tensor) or priorities.device.type == "cpu":
            return checked_priorities(priorities, row_count).copy()
        if self._stream is None or priorities.device != self._stream.device:
            return Computed(priorities.detach().clone(), None)
        with torch.cuda.device(self._stream.device):
            values = priorities.detach().clone()
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return Computed(values, done)

    def fetched(self, priorities: Computed) -> NDArray[Any]:
        """Wait for the device to compute priorities, and return them."""
        if self._stream is None or priorities.done is None:
            return as_array(priorities.values)
        self._stream.wait_event(priorities.done)
        with torch.cuda.stream(self._stream):  # wait only for this stream
            return as_array(priorities.values)


class AheadBase(Generic[T]):
    """Base class of what fetches batches ahead of a learner: the updates that are handed over meanwhile."""

    def __init__(self, sampler: SamplerHandle | MixedHandle[Any], copies: DeviceCopies) -> None:
        self._copies = copies
        self._sampler = sampler
        self._updates: deque[Callable[[], T]] = deque()
        self.is_closed = False
        """Whether the sampler was closed."""

    @property
    def title(self) -> str:
        """See `Work`."""
        return f"sampler for device {self._copies.device}: {self._sampler!r}"

    @property
    def unacknowledged(self) -> int:
        """Number of messages with unacknowledged updates; each update that was not handed over counts, too."""
        return len(self._updates) + self._sampler.unacknowledged

    def check(self) -> None:
        """Raise `ClosedError` if the sampler was closed."""
        if self.is_closed:
            raise ClosedError("this sampler is closed")


class TensorHandle:
    """Base class of samplers that prefetch batches to a device: their properties, and checks of updates."""

    def __init__(self, sampler: SamplerHandle | MixedHandle[Any], device: Device) -> None:
        self._copies = DeviceCopies(device)
        self.device = self._copies.device
        """Device of the batches."""
        self._sampler = sampler
        self._one_caller = OneCaller("sampler")

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
        """Number of batches in flight while the next one is fetched, at least 1. May be set to "auto"."""
        return self._sampler.prefetch

    @prefetch.setter
    def prefetch(self, prefetch: Prefetch) -> None:
        self._sampler.prefetch = prefetch

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

    def _taken(
        self, batch_or_keys: BatchOrKeys | MixedKeys, priorities: ArrayLike
    ) -> tuple[Any, NDArray[np.float64] | Computed]:
        """Check and copy the keys of an update, and its priorities, which a device may still be computing."""
        keys = self._sampler._keys_of(batch_or_keys)  # type: ignore[arg-type]  # it refuses keys of the other kind
        return keys, self._copies.taken(self._sampler._combined(batch_or_keys, priorities), len(keys))

    def _checked_update(
        self, keys: ArrayLike, columns: Mapping[str, Any]
    ) -> tuple[NDArray[np.int64], dict[str, Array]]:
        """Check and copy new values of mutable columns; only a sampler of one table can update them."""
        if isinstance(self._sampler, MixedHandle):
            raise InvalidArgumentError.of_field("update", "a sampler of one table, or Table.update", repr(self))
        return self._sampler._checked_update(keys, columns)
