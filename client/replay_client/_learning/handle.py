"""The base classes of all samplers, without I/O, and the check of the device that they copy tensors to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_proto.framing import Array
from replay_proto.v1 import replay_pb2

from replay_client._extras import check_extra
from replay_client._learning.answers import BatchReader
from replay_client._learning.combining import combined
from replay_client._learning.learning import Learning
from replay_client._rows.checks import checked_keys, checked_update
from replay_client._rows.columns import BatchOrKeys
from replay_client._rows.mapped_rows import NearRows
from replay_client._transport.call import time_limit
from replay_client._transport.connection import ConnectionBase
from replay_client.draws import Prefetch
from replay_client.results.description import TableDescription

if TYPE_CHECKING:
    from replay_client._learning.tensors import Device


def check_device(device: Device | None) -> None:
    """Check that torch is installed and can use a device. With None, check nothing, because torch is not needed."""
    if device is None:
        return
    check_extra("agent", "torch")
    from replay_client._learning.tensors import check_usable  # loads torch

    check_usable(device)


class ThreadSampler(ABC):
    """Base class of all samplers for threads: how ``for`` and ``with`` use them."""

    @abstractmethod
    def close(self) -> None:
        """Flush and close."""

    @abstractmethod
    def cancel(self) -> None:
        """Close without a flush."""

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Flush and close. After an error in the block, only close, because the updates may be incomplete."""
        if error is None:
            self.close()
        else:
            self.cancel()


class LoopSampler(ABC):
    """Base class of all samplers for event loops: how ``async for`` and ``async with`` use them."""

    @abstractmethod
    async def close(self) -> None:
        """Flush and close."""

    @abstractmethod
    def cancel(self) -> None:
        """Close without a flush."""

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Flush and close. After an error in the block, only close, because the updates may be incomplete."""
        if error is None:
            await self.close()
        else:
            self.cancel()


class SamplerHandle:
    """Base class of the samplers of one table, with their properties."""

    _connection: ConnectionBase

    def __init__(
        self,
        connection: ConnectionBase,
        table: TableDescription,
        draw: replay_pb2.Draw,
        reader: BatchReader,
        near: NearRows,
        *,
        prefetch: Prefetch,
        reconnect_timeout_s: float | None,
    ) -> None:
        self._learning = Learning(
            table,
            draw,
            reader,
            near,
            prefetch=prefetch,
            reconnect_timeout_s=time_limit("reconnect_timeout_s", reconnect_timeout_s, connection.timeout_s),
        )
        self._table = table
        self._address = connection.address
        self._is_closed = False

    @property
    def batch_size(self) -> int:
        """Rows of each batch; for another number, create another sampler."""
        return self._learning.draw.batch_size

    @property
    def beta(self) -> float:
        """Exponent of the weights in future requests; `Batch.beta` is the exponent used for a batch."""
        return self._learning.beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._learning.beta = beta

    @property
    def prefetch(self) -> int:
        """Number of batches in flight while the sampler waits for the next one, at least 1. May be set to "auto"."""
        return self._learning.prefetch

    @prefetch.setter
    def prefetch(self, prefetch: Prefetch) -> None:
        self._learning.prefetch = prefetch

    @property
    def in_flight(self) -> int:
        """Batches requested but not yet returned."""
        return self._learning.in_flight

    @property
    def unacknowledged(self) -> int:
        """Number of messages with unacknowledged updates. All unsent updates count as one message."""
        return self._learning.unacknowledged

    @property
    def updated(self) -> int:
        """Number of rows updated so far, according to the server's replies."""
        return self._learning.updated

    @property
    def stale(self) -> int:
        """Number of stale keys so far, according to the server's replies."""
        return self._learning.stale

    def _keys_of(self, batch_or_keys: BatchOrKeys) -> NDArray[np.int64]:
        """Check and copy the keys of a batch, int64[n]."""
        return checked_keys(batch_or_keys).copy()

    def _combined(self, batch_or_keys: object, priorities: ArrayLike) -> ArrayLike:
        """Return the priorities of items; see `combined`."""
        return combined(batch_or_keys, priorities, self._table.steps)

    def _checked_update(
        self, keys: ArrayLike, columns: Mapping[str, Any]
    ) -> tuple[NDArray[np.int64], dict[str, Array]]:
        """Check and copy new values of mutable columns; see `checked_update`."""
        return checked_update(self._table.schema, keys, columns)

    def deadline(self, timeout_s: float | None) -> float:
        """Convert the time limit of a `flush` to a deadline on the clock `time.monotonic`."""
        return self._connection.deadline("timeout_s", timeout_s)

    def __repr__(self) -> str:
        draw = f"batch_size={self._learning.draw.batch_size}, beta={self.beta}"
        return f"<Sampler of table {self._table.name!r} at {self._address}: {draw}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a sampler cannot be pickled or copied; send the table and create a sampler there")
