"""Results of calls: batches, rows read by key, outcomes of updates, and published state.

Arrays are writable, aligned and owned by the caller. Once all of a batch's arrays are freed, their memory is reused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from replay_proto.v1 import replay_pb2

from replay_client._rows.columns import Columns, MixedRows, T_co
from replay_client._rows.positions import NO_ROW, Positions, offsets_of, part_of
from replay_client.errors import InvalidArgumentError


@dataclass(frozen=True, eq=False)
class RowInfo:
    """What the server knows of drawn rows, other than their priorities. In a table of steps, of their anchors."""

    times_sampled: NDArray[np.uint32]
    """uint32[batch]: how often each row was drawn before the request for this batch, since it was inserted or the
    server started."""
    ages_s: NDArray[np.float32]
    """float32[batch]: seconds since each row was inserted or the server started, whichever is later. The time of an
    insert is known to about 1/256 of the time in which the table is filled."""


@dataclass(frozen=True, eq=False, repr=False)
class Drawn(Columns[T_co]):
    """Rows drawn by priority, as arrays or tensors; all values are from the time of the draw."""

    row_keys: NDArray[np.int64]
    """int64[batch]: key of each row; in a table of steps, of each anchor. Always a NumPy array, also in a batch of
    tensors, because updates are sent from the CPU."""
    columns: Mapping[str, T_co]
    """Arrays by column name, in the order of the schema: ``dtype[batch, *shape]``. A table of steps has sampled and
    derived columns; for sequences, they are ``dtype[batch, burn_in + length, *shape]`` or, without padding,
    ``dtype[total, *shape]``; see `offsets`."""
    probabilities: T_co
    """float64[batch]: the mass of each row, divided by the total mass."""
    weights: T_co
    """float32[batch]: (drawable * probability) ** -beta, normalized by `weight_norm` (Schaul et al. 2016, 3.4)."""
    beta: float
    """Exponent of the weights."""
    table_size: int
    """Live rows in the table; `batch_size` counts the rows of the batch."""
    drawable: int
    """Rows that could be drawn: in a table of steps, those with a complete window; otherwise all live rows."""
    total_mass: float
    """Mass of all live rows."""
    smallest_probability: float
    """Smallest probability of a live row with non-zero mass."""
    inserted: int
    """Rows ever inserted into the table."""
    row_info: RowInfo | None
    """What else is known of each row, as NumPy arrays; None unless the draw asked for it with ``row_info=True``."""
    _positions: Positions | None = field(default=None, kw_only=True)

    @property
    def position_keys(self) -> NDArray[np.int64]:
        """The keys of all drawn rows, for `Table.update`; -1 where a position has no row. A NumPy array.

        - in a plain table, int64[batch]: `row_keys`
        - of transitions, int64[batch, n_step + 1]: the steps from the anchor to the one of the next observation
        - of sequences, int64[batch, burn_in + length]: all positions. A stack has the key of its newest row. Without
          padding, int64[total].

        Raises:
            InvalidArgumentError: the batch has rows of several tables; use its parts then.
        """
        if isinstance(self, MixedRows):
            raise InvalidArgumentError.of_field("position_keys", "a batch of one table", type(self).__name__)
        if self._positions is None:
            return self.row_keys
        keys = self._positions.keys()
        return keys[keys != NO_ROW] if self._positions.is_ragged else keys

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each sequence without padding begins: int64[batch + 1], a NumPy array.

        Sequence i has the positions ``column[offsets[i] : offsets[i + 1]]`` of each column with a value per step. They
        are its steps, and the final observation if the episode ends there.

        Raises:
            InvalidArgumentError: the batch has no ``Sequences(..., padded=False)``.
        """
        if self._positions is None or not self._positions.is_ragged:
            raise InvalidArgumentError.of_field("offsets", "a batch of Sequences(..., padded=False)", repr(self))
        return offsets_of(self._positions)

    def split(self, count: int) -> list[Self]:
        """Split the batch into smaller ones of equal size, for several gradient steps with rows of one draw.

        The rows of a batch are shuffled, so each part is a fair sample. Weights stay as they are: divided by the
        largest weight in the whole batch.

        Args:
            count: number of parts, which divides `batch_size`.

        Returns:
            Batches whose arrays are views of those of this batch.

        Raises:
            InvalidArgumentError: the batch has another size, or rows of several tables; split its parts then.
        """
        if isinstance(self, MixedRows):
            raise InvalidArgumentError.of_field("split", "a batch of one table", type(self).__name__)
        rows = self.batch_size // count if isinstance(count, int) and count >= 1 else 0
        if not rows or rows * count != self.batch_size:
            raise InvalidArgumentError.of_field("count", f"a divisor of {self.batch_size} rows", repr(count))
        return [self._part(slice(first, first + rows)) for first in range(0, self.batch_size, rows)]

    def _part(self, rows: slice) -> Self:
        info, positions = self.row_info, rows
        if self._positions is not None and self._positions.is_ragged:
            offsets = self.offsets
            positions = slice(int(offsets[rows.start]), int(offsets[rows.stop]))
        return replace(
            self,
            row_keys=self.row_keys[rows],
            columns={
                name: column[rows if len(column) == self.batch_size else positions]  # type: ignore[arg-type,index]
                for name, column in self.columns.items()
            },
            probabilities=self.probabilities[rows],  # type: ignore[index]
            weights=self.weights[rows],  # type: ignore[index]
            row_info=None if info is None else RowInfo(info.times_sampled[rows], info.ages_s[rows]),
            _positions=part_of(self._positions, rows),
        )


@dataclass(frozen=True, eq=False, repr=False)
class Batch(Drawn[NDArray[Any]]):
    """A batch as NumPy arrays."""

    probabilities: NDArray[np.float64]
    weights: NDArray[np.float32]


@dataclass(frozen=True, eq=False, repr=False)
class MixedBatch(Batch, MixedRows[NDArray[Any]]):
    """A batch of several tables; see `ReplayClient.mixed_sampler`.

    `probabilities` are those within each row's own table. The weight of a row is ``(drawable * probability) ** -beta``,
    with the values of its own table, divided by the largest weight. Weights correct for priorities, but not for the
    number of rows drawn from each table. `table_size`, `drawable`, `total_mass` and `inserted` are sums over all
    tables.
    """

    tables: NDArray[np.int64]
    """int64[batch]: number of each row's table, from 0, in the order of `parts`. Always a NumPy array."""
    parts: Mapping[str, Batch] = field(default_factory=dict)
    """The rows of each table by name, as views of this batch, with the other values of that table."""


@dataclass(frozen=True, eq=False, repr=False)
class Rows(Columns[NDArray[Any]]):
    """Rows read by key, in the requested order. Rows that are no longer live are missing."""

    row_keys: NDArray[np.int64]
    """int64[n]: key of each row."""
    columns: Mapping[str, NDArray[Any]]
    """Arrays by column name, in the order of the schema: ``dtype[n, *shape]``."""
    priorities: NDArray[np.float64]
    """float64[n]: priority of each row, without the exponent."""
    streams: NDArray[np.uint64]
    """uint64[n]: the stream of experience of each row; 0 if not given."""
    episodes: NDArray[np.uint64]
    """uint64[n]: the episode of each row within its stream."""
    steps: NDArray[np.int64] | None = None
    """int64[n]: the number of each step within its episode; None: not a table of steps."""
    ends: NDArray[np.uint8] | None = None
    """uint8[n]: 0 for a step, 1 for a row that closes a truncated episode, 2 for one that closes a terminated episode.
    None: not a table of steps. `truncated` and `terminated` are the same as flags."""

    @property
    def terminated(self) -> NDArray[np.bool_] | None:
        """bool[n]: whether each row closes an episode that terminated; None: not a table of steps."""
        return None if self.ends is None else self.ends == replay_pb2.EPISODE_END_TERMINATED

    @property
    def truncated(self) -> NDArray[np.bool_] | None:
        """bool[n]: whether each row closes an episode that was truncated; None: not a table of steps."""
        return None if self.ends is None else self.ends == replay_pb2.EPISODE_END_TRUNCATED


@dataclass(frozen=True)
class UpdateResult:
    """Outcome of an update of priorities or of rows."""

    updated: int
    """Number of distinct rows that were updated."""
    stale: int
    """Number of keys, including duplicates, that were ignored because their rows are not live."""


class Published(NamedTuple):
    """State that a program has published; see `replay_client.ReplayClient.latest`."""

    version: int
    """Number of the publication; later ones have higher numbers. On the first server, the first one has 1."""
    values: dict[str, Any]
    """Arrays by name, nested as they were published: ``dtype[*shape]``, writable, the caller's to keep."""
