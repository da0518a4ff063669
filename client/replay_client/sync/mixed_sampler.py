"""Draws batches whose rows come from several tables.

    with client.sampler({"online": 128, "demo": 128}, beta=0.4) as sampler:
        for batch in sampler:
            td_errors = learn(batch["obs"], batch["action"], batch.weights)     # 256 rows
            imitate(batch.parts["demo"]["obs"], batch.parts["demo"]["action"])  # 128 of them, without a copy
            sampler.update_priorities(batch, td_errors)                         # each table gets its own

There is one `Sampler` for each table, with a stream of its own. They copy rows directly to their places in the mixed
batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from replay_client._rows.buffers import JoinedBuffers
from replay_client._rows.checks import checked_keys, checked_priorities
from replay_client._rows.columns import Columns, MixedRows
from replay_client.batch import Batch, MixedBatch
from replay_client.draws import Prefetch, WeightNorm
from replay_client.errors import InvalidArgumentError
from replay_client.sync.sampler import Sampler


@dataclass(frozen=True, eq=False)
class MixedKeys:
    """Some rows of several tables: ``MixedKeys(batch.tables[some], batch.row_keys[some])``."""

    tables: NDArray[np.int64]
    """int64[n]: number of each row's table, from 0, in the order of the sampler."""
    row_keys: NDArray[np.int64]
    """int64[n]: key of each row in its table."""

    def __len__(self) -> int:
        return len(self.row_keys)


class MixedSampler:
    """An endless iterator over batches of several tables. For use in one thread."""

    def __init__(
        self,
        samplers: Mapping[str, Sampler],
        buffers: JoinedBuffers,
        *,
        weight_norm: WeightNorm,
        queues: Collection[str],
    ) -> None:
        """Created by `ReplayClient.sampler`; takes ownership of the samplers, which share ``buffers``.

        ``queues`` are the names of tables whose rows have no probabilities.
        """
        self.samplers: Final = dict(samplers)
        """The sampler of each table by name: `Sampler.updated`, `Sampler.stale`, and a `Sampler.beta` of its own."""
        self._buffers = buffers
        self._weight_norm = weight_norm
        self._queues = queues
        self._tables = np.repeat(np.arange(len(buffers.parts)), [part.stop - part.start for part in buffers.parts])
        self._drawn: list[Batch] = []  # kept if another table refuses to draw

    @property
    def beta(self) -> float:
        """Exponent of the weights in future requests; that of the first table, if they differ."""
        return next(iter(self.samplers.values())).beta

    @beta.setter
    def beta(self, beta: float) -> None:
        for sampler in self.samplers.values():
            sampler.beta = beta

    @property
    def prefetch(self) -> int:
        """Batches in flight while `next()` waits, at least 1; can be changed, also to "auto".

        If the samplers have different ones, this is the largest.
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
        """Number of messages with unacknowledged updates; unsent updates count as one message for each table."""
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

    def __iter__(self) -> MixedSampler:
        return self

    def __next__(self) -> MixedBatch:
        """Send updates and requests for another batch, and return the oldest batch in flight.

        Raises:
            ReplayError: as for `Sampler`, if one of the tables refuses to draw. Its name is in the error's
                ``metadata``. Calling again continues; what the other tables have drawn is kept.
        """
        samplers = list(self.samplers.values())
        for sampler in samplers[len(self._drawn) :]:
            sampler.request()
        while len(self._drawn) < len(samplers):
            self._drawn.append(next(samplers[len(self._drawn)]))
        drawn, self._drawn = self._drawn, []
        return self._joined(drawn)

    def update_priorities(self, batch: Columns[Any] | MixedKeys, priorities: ArrayLike) -> None:
        """Update priorities in the tables that the rows come from. The next call of `next()` or `flush` sends them.

        Args:
            batch: a batch of this sampler, or some of its rows, n in total.
            priorities: finite absolute TD errors float64[n], as an array or a tensor. If a device is still computing
                the tensor, the call waits.

        Raises:
            InvalidArgumentError: the batch or the priorities are invalid. No priority is updated.
        """
        rows = self.keys_of(batch)
        values = checked_priorities(priorities, len(rows))
        for number, sampler in enumerate(self.samplers.values()):
            mine = rows.tables == number
            if mine.any():
                sampler.update_priorities(rows.row_keys[mine], values[mine])

    def keys_of(self, batch: Columns[Any] | MixedKeys) -> MixedKeys:
        """Check and copy the keys of a batch.

        Raises:
            InvalidArgumentError: it is not a batch of this sampler.
        """
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

    def deadline(self, timeout_s: float | None) -> float:
        """Convert the time limit of a `flush` to a deadline on the clock `time.monotonic`."""
        return next(iter(self.samplers.values())).deadline(timeout_s)

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

    def __enter__(self) -> MixedSampler:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Flush and close. After an error in the block, only close, because the updates may be incomplete."""
        if error is None:
            self.close()
        else:
            self.cancel()

    def _joined(self, drawn: Sequence[Batch]) -> MixedBatch:
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
            size=sum(batch.size for batch in drawn),
            drawable=sum(batch.drawable for batch in drawn),
            total_mass=sum(batch.total_mass for batch in drawn),
            smallest_probability=min(batch.smallest_probability for batch in drawn),
            inserted=sum(batch.inserted for batch in drawn),
            tables=self._tables.copy(),
            parts=parts,
        )

    def _weights(self, drawn: Sequence[Batch]) -> NDArray[np.float32]:
        """Return the weights ``(drawable * probability) ** -beta`` of all rows over the largest one: float32[batch].

        Each table has divided its weights by its own largest one, which is that of the smallest probability. This is
        undone in logarithms, which cannot overflow.
        """
        logs = []
        for name, batch in zip(self.samplers, drawn, strict=True):
            least = float(batch.probabilities.min()) if self._weight_norm == "batch" else batch.smallest_probability
            logs.append(0.0 if name in self._queues else -batch.beta * math.log(batch.drawable * least))
        largest = max(logs)
        return np.concatenate(
            [batch.weights * np.float32(math.exp(log - largest)) for batch, log in zip(drawn, logs, strict=True)]
        )
