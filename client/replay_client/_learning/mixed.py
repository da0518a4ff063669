"""The base class of all samplers that draw from several tables, without I/O."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from replay_client._learning.handle import SamplerHandle
from replay_client._learning.one_caller import OneCaller
from replay_client._rows.buffers import JoinedBuffers
from replay_client._rows.checks import checked_keys, checked_priorities
from replay_client._rows.columns import Columns, MixedRows
from replay_client.batch import Batch, MixedBatch, RowInfo
from replay_client.draws import Prefetch, WeightNorm
from replay_client.errors import InvalidArgumentError

S = TypeVar("S", bound=SamplerHandle)


@dataclass(frozen=True, eq=False)
class MixedKeys:
    """Some rows of several tables: ``MixedKeys(batch.tables[some], batch.row_keys[some])``."""

    tables: NDArray[np.int64]
    """int64[n]: number of each row's table, from 0, in the order of the sampler."""
    row_keys: NDArray[np.int64]
    """int64[n]: key of each row in its table."""

    def __len__(self) -> int:
        return len(self.row_keys)


class MixedHandle(Generic[S]):
    """Base class of samplers of several tables: their properties, and how the tables' rows are joined."""

    def __init__(
        self,
        samplers: Mapping[str, S],
        buffers: JoinedBuffers,
        *,
        weight_norm: WeightNorm,
        queues: Collection[str],
    ) -> None:
        """Created by `ReplayClient.mixed_sampler`; takes ownership of the samplers, which share ``buffers``.

        ``queues`` are the names of tables whose rows have no probabilities.
        """
        self.samplers: Final = dict(samplers)
        """The sampler of each table by name, for its own `Sampler.updated`, `Sampler.stale` and `Sampler.beta`."""
        self._one_caller = OneCaller("sampler")
        self._buffers = buffers
        self._weight_norm = weight_norm
        self._queues = queues
        self._tables = np.repeat(np.arange(len(buffers.parts)), [part.stop - part.start for part in buffers.parts])
        self._drawn: list[Batch] = []  # kept if another table refuses to draw

    @property
    def batch_size(self) -> int:
        """Rows of each batch, of all tables together; for another number, create another sampler."""
        return sum(sampler.batch_size for sampler in self.samplers.values())

    @property
    def beta(self) -> float:
        """Exponent of the weights in future requests. If it differs between tables, this is the first table's."""
        return next(iter(self.samplers.values())).beta

    @beta.setter
    def beta(self, beta: float) -> None:
        for sampler in self.samplers.values():
            sampler.beta = beta

    @property
    def prefetch(self) -> int:
        """Number of batches in flight while `next()` waits, at least 1. May be set to "auto".

        If the samplers differ, this is the largest value.
        """
        return max(sampler.prefetch for sampler in self.samplers.values())

    @prefetch.setter
    def prefetch(self, prefetch: Prefetch) -> None:
        for sampler in self.samplers.values():
            sampler.prefetch = prefetch

    @property
    def in_flight(self) -> int:
        """Batches requested but not yet returned."""
        return max(sampler.in_flight for sampler in self.samplers.values())

    @property
    def unacknowledged(self) -> int:
        """Number of messages with unacknowledged updates. All unsent updates of a table count as one message."""
        return sum(sampler.unacknowledged for sampler in self.samplers.values())

    @property
    def updated(self) -> int:
        """Number of rows updated so far, according to the server's replies."""
        return sum(sampler.updated for sampler in self.samplers.values())

    @property
    def stale(self) -> int:
        """Number of stale keys so far, according to the server's replies."""
        return sum(sampler.stale for sampler in self.samplers.values())

    def __repr__(self) -> str:
        return f"<MixedSampler of {', '.join(map(repr, self.samplers.values()))}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a sampler cannot be pickled or copied; send the client and create a sampler there")

    def _keys_of(self, batch: Columns[Any] | MixedKeys) -> MixedKeys:
        """Check and copy the keys of a batch."""
        names = list(self.samplers)
        if not isinstance(batch, MixedKeys | MixedRows) or list(getattr(batch, "parts", None) or names) != names:
            expected = f"a batch of this sampler, of the tables {', '.join(names)}, or MixedKeys"
            raise InvalidArgumentError.of_field("batch", expected, repr(batch))
        keys = checked_keys(batch.row_keys)
        tables = checked_keys(batch.tables, field="tables")
        if len(tables) != len(keys):
            raise InvalidArgumentError.of_field("tables", f"int64[{len(keys)}], like row_keys", f"int64[{len(tables)}]")
        if len(tables) and not 0 <= tables.min() <= tables.max() < len(names):
            expected = f"numbers from 0 to {len(names) - 1}"
            raise InvalidArgumentError.of_field("tables", expected, f"{tables.min()} to {tables.max()}")
        return MixedKeys(tables.copy(), keys.copy())

    def _combined(self, batch: object, priorities: ArrayLike) -> ArrayLike:
        """Return the priorities as they are: those of steps are for a sampler of one table."""
        return priorities

    def deadline(self, timeout_s: float | None) -> float:
        """Convert the time limit of a `flush` to a deadline on the clock `time.monotonic`."""
        return next(iter(self.samplers.values())).deadline(timeout_s)

    def _undrawn(self) -> list[S]:
        """Return the samplers whose parts of the next batch are missing."""
        return list(self.samplers.values())[len(self._drawn) :]

    def _updates(
        self, batch: Columns[Any] | MixedKeys, priorities: ArrayLike
    ) -> Iterator[tuple[S, NDArray[np.int64], NDArray[np.float64]]]:
        """Yield each table's share of the updates: its sampler, keys int64[n], and priorities float64[n]."""
        rows = self._keys_of(batch)
        values = checked_priorities(priorities, len(rows))
        for number, sampler in enumerate(self.samplers.values()):
            mine = rows.tables == number
            if mine.any():
                yield sampler, rows.row_keys[mine], values[mine]

    def _joined(self) -> MixedBatch:
        """Join the parts that the tables have drawn into one batch."""
        drawn, self._drawn = self._drawn, []
        columns = self._buffers.joined([batch.columns for batch in drawn])
        keys = np.concatenate([batch.row_keys for batch in drawn])
        probabilities = np.concatenate([batch.probabilities for batch in drawn])
        weights = self._weights(drawn)
        parts = {
            name: replace(
                batch,
                row_keys=keys[rows],
                columns={name: column[rows] for name, column in columns.items()},
                probabilities=probabilities[rows],
                weights=weights[rows],
            )
            for name, batch, rows in zip(self.samplers, drawn, self._buffers.parts, strict=True)
        }
        return MixedBatch(
            row_keys=keys,
            columns=columns,
            probabilities=probabilities,
            weights=weights,
            beta=drawn[0].beta,
            table_size=sum(batch.table_size for batch in drawn),
            drawable=sum(batch.drawable for batch in drawn),
            total_mass=sum(batch.total_mass for batch in drawn),
            smallest_probability=min(batch.smallest_probability for batch in drawn),
            inserted=sum(batch.inserted for batch in drawn),
            row_info=_joined_info(drawn),
            tables=self._tables.copy(),
            parts=parts,
        )

    def _weights(self, drawn: Sequence[Batch]) -> NDArray[np.float32]:
        """Return the weights ``(drawable * probability) ** -beta`` of all rows, divided by the largest: float32[batch].

        Each table has already divided its weights by its own largest weight, which belongs to its smallest probability.
        This division is undone in logarithms, which cannot overflow.
        """
        logs = []
        for name, batch in zip(self.samplers, drawn, strict=True):
            least = float(batch.probabilities.min()) if self._weight_norm == "batch" else batch.smallest_probability
            logs.append(0.0 if name in self._queues else -batch.beta * math.log(batch.drawable * least))
        largest = max(logs)
        return np.concatenate(
            [batch.weights * np.float32(math.exp(log - largest)) for batch, log in zip(drawn, logs, strict=True)]
        )


def _joined_info(drawn: Sequence[Batch]) -> RowInfo | None:
    known = [batch.row_info for batch in drawn if batch.row_info is not None]
    if not known:
        return None
    times_sampled = np.concatenate([info.times_sampled for info in known])
    return RowInfo(times_sampled, np.concatenate([info.ages_s for info in known]))
