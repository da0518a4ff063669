"""A round draws one or more batches of a distributed table together, and collects their parts from the shards.

The rows of all parts are in one piece of memory, shard after shard. Each reply is written to its place there.
A `Bundle` then copies the rows of each batch in random order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array
from replay_proto.v1 import replay_pb2

from replay_client._rows.buffers import Blank
from replay_client._rows.copying import in_long_rows
from replay_client._rows.positions import NO_ROW, Positions, part_of
from replay_client._shards.keys import global_keys
from replay_client._shards.mass import joined_weights, places_of_batches, rows_by_shard
from replay_client.batch import Batch, RowInfo
from replay_client.draws import DrawMode
from replay_client.errors import InternalServerError

T = TypeVar("T", np.int64, np.bool_)


class Bundle:
    """Divides the rows of a round among its batches, once all parts have arrived.

        bundle = Bundle(round, states, columns)          # copies all rows to `columns`
        bundle.take()                                   # the next batch

    Batches that were not taken are counted in `left`.
    """

    def __init__(self, round: Round, states: Collection[replay_pb2.TableState], columns: Mapping[str, Array]) -> None:
        """Divide the rows.

        Args:
            round: the round; all its parts have arrived.
            states: the latest states of the shards.
            columns: memory for the rows of all batches, batch after batch, by column.
        """
        self.left = round.batches
        """Number of batches that were not taken."""
        draw, places = round.draw, round.places
        for name, column in columns.items():
            # With any mode but "raise", take() writes directly to its output; all places are in range.
            rows = in_long_rows(round.columns[name])
            rows.take(places.reshape(-1), axis=0, out=in_long_rows(column), mode="clip")
        keys, probabilities = np.empty(places.size, np.int64), np.empty(places.size, np.float64)
        for part in round.parts:
            keys[part.rows] = global_keys(part.shard_id, part.batch.row_keys)
            probabilities[part.rows] = round.probabilities(part)
        self._columns, self._keys, self._probabilities = columns, keys.take(places), probabilities.take(places)
        self._least = round.smallest_probability() or float(probabilities.min())
        is_by_batch = draw.weight_norm == replay_pb2.WEIGHT_NORM_BATCH
        self._weights = joined_weights(self._probabilities, None if is_by_batch else self._least, draw.beta)
        self._info = _info_of(round.parts, places) if draw.row_info else None
        known = [(part.shard_id, part.rows, part.batch._positions) for part in round.parts]
        self._positions = None if known[0][-1] is None else _JoinedPositions(known, places)
        self._beta = draw.beta
        self._size = sum([state.size for state in states])
        self._drawable = sum([state.drawable for state in states])
        self._total_mass = sum([state.total_mass for state in states])
        self._inserted = sum([state.inserted for state in states])

    def take(self) -> Batch:
        """Return the next batch."""
        number = len(self._keys) - self.left
        self.left -= 1
        keys = self._keys[number]
        rows = slice(number * len(keys), (number + 1) * len(keys))
        return Batch(
            row_keys=keys,
            columns={name: column[rows] for name, column in self._columns.items()},
            probabilities=self._probabilities[number],
            weights=self._weights[number],
            beta=self._beta,
            table_size=self._size,
            drawable=self._drawable,
            total_mass=self._total_mass,
            smallest_probability=self._least,
            inserted=self._inserted,
            row_info=None if self._info is None else RowInfo(*(each[number] for each in self._info)),
            _positions=part_of(self._positions, number),
        )


class Part(NamedTuple):
    """Rows of a round that have arrived in one reply."""

    shard_id: int
    rows: slice
    """Their place in the round's columns."""
    batch: Batch


def _info_of(parts: Sequence[Part], places: NDArray[np.intp]) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Return uint32[batches, batch_size] and float32[batches, batch_size]: the fields of `RowInfo` of all batches."""
    times_sampled, ages_s = np.empty(places.size, np.uint32), np.empty(places.size, np.float32)
    for part in parts:
        if (info := part.batch.row_info) is not None:
            times_sampled[part.rows], ages_s[part.rows] = info.times_sampled, info.ages_s
    return times_sampled.take(places), ages_s.take(places)


@dataclass(frozen=True)
class _JoinedPositions:
    """The positions of all batches of a round."""

    parts: Sequence[tuple[int, slice, Positions | None]]
    """The shard of each part, its place in the round, and its positions."""
    places: NDArray[np.intp]
    is_ragged = False

    def keys(self) -> NDArray[np.int64]:
        """Return int64[batches, batch_size, positions]."""
        parts = []
        for shard_id, rows, positions in self.parts:
            assert positions is not None
            local = positions.keys()
            parts.append((rows, np.where(local == NO_ROW, NO_ROW, global_keys(shard_id, local))))
        return self._joined(parts)

    def learned(self) -> NDArray[np.bool_]:
        """Return bool[batches, batch_size, length]."""
        return self._joined([(rows, known.learned()) for _, rows, known in self.parts if known is not None])

    def _joined(self, parts: Sequence[tuple[slice, NDArray[T]]]) -> NDArray[T]:
        joined = np.empty((self.places.size, parts[0][1].shape[1]), parts[0][1].dtype)
        for rows, values in parts:
            joined[rows] = values
        return joined[self.places]


class RowRequest(NamedTuple):
    """What a round requests from a shard."""

    shard_id: int
    row_count: int


@dataclass(eq=False)
class Round:
    """See the module."""

    draw: replay_pb2.Draw
    """The options with which each batch is drawn."""
    chances: dict[int, float]
    """The probability with which each shard was chosen, by id."""
    smallest: Mapping[int, float]
    """The smallest probability in each shard before the draw, by id."""
    columns: Mapping[str, Array] = field(default_factory=dict)
    """Memory for the rows of all batches, by column."""
    asked: dict[int, int] = field(default_factory=dict)
    """Number of rows requested from each shard that have not arrived, by id."""
    parts: list[Part] = field(default_factory=list)
    """Rows that have arrived."""
    batches: int = 1
    """Number of batches."""
    places: NDArray[np.intp] = field(default_factory=lambda: np.empty((0, 0), np.intp))
    """intp[batches, batch_size]: the place of each batch's rows in `columns`."""
    _expected: dict[int, deque[slice]] = field(default_factory=dict)  # the places of requested rows, by shard
    _lent: dict[int, dict[str, Array]] = field(default_factory=dict)  # the latest result of `lend`, by shard

    @property
    def is_complete(self) -> bool:
        """Whether all rows have arrived."""
        return not self.asked

    def ask(self, random: np.random.Generator) -> list[RowRequest]:
        """Choose the shards of all rows. Return what to request from each shard.

        In the mode "stratified", all batches get the same number of rows from a shard. So each batch is divided as if
        it were drawn alone, but the last row of a shard is in all batches or in none.
        """
        if self._mode == "independent":
            rows = self.batches * self.draw.batch_size
            self.places = random.permutation(rows).reshape(self.batches, -1)
            return self._expect(0, self._divided(rows, random))
        counts = self._divided(self.draw.batch_size, random)
        self.places = places_of_batches(counts, self.batches, random)
        return self._expect(0, [count * self.batches for count in counts])

    def ask_again(self, random: np.random.Generator, missing: Iterable[slice]) -> list[RowRequest]:
        """Choose shards again for the rows that `without` returned."""
        requests = []
        for rows in missing:
            requests += self._expect(rows.start, self._divided(rows.stop - rows.start, random))
        return requests

    def lend(self, shard_id: int, row_count: int) -> dict[str, Array] | None:
        """Return the memory for the next reply of a shard; None if the reply does not have the requested rows."""
        expected = self._expected.get(shard_id)
        if not expected or expected[0].stop - expected[0].start != row_count:
            return None
        rows = expected[0]
        columns = self._lent[shard_id] = {name: column[rows] for name, column in self.columns.items()}
        return columns

    def arrived(self, shard_id: int, batch: Batch) -> None:
        """Add rows of a shard, unless it has been discarded.

        Raises:
            InternalServerError: the server sent another number of rows than was requested.
        """
        if shard_id not in self.chances:
            return
        rows = self._expected[shard_id].popleft()
        if batch.batch_size != rows.stop - rows.start:
            raise InternalServerError(f"the server sent {batch.batch_size} rows instead of {rows.stop - rows.start}")
        if batch.columns is not self._lent.pop(shard_id, None):  # otherwise, its rows are in their place already
            for name, column in self.columns.items():
                np.copyto(column[rows], batch.columns[name])
        self.parts.append(Part(shard_id, rows, batch))
        self.asked[shard_id] -= batch.batch_size
        if not self.asked[shard_id]:
            del self.asked[shard_id]

    def probabilities(self, part: Part) -> NDArray[np.float64]:
        """Return the probabilities of a part's rows in the whole table, float64[n]."""
        return part.batch.probabilities * self.chances[part.shard_id]

    def smallest_probability(self) -> float:
        """Return the smallest probability in the whole table; 0 if it is not known."""
        of_parts = {part.shard_id: part.batch.smallest_probability for part in self.parts}
        smallest = {**self.smallest, **of_parts}
        of_shards = [chance * smallest[shard_id] for shard_id, chance in self.chances.items()]
        return min([value for value in of_shards if value > 0], default=0.0)

    def without(self, shard_id: int) -> list[slice]:
        """Discard a shard, and return the rows that must be drawn from the other shards instead.

        The chances of the other shards increase, as if this shard could not have been chosen.
        """
        if shard_id not in self.chances:
            return []
        self.asked.pop(shard_id, None)
        missing = [*self._expected.pop(shard_id, ()), *(part.rows for part in self.parts if part.shard_id == shard_id)]
        self.parts = [part for part in self.parts if part.shard_id != shard_id]
        del self.chances[shard_id]
        total = sum(self.chances.values())
        self.chances = {shard: chance / total for shard, chance in self.chances.items()} if total > 0 else {}
        return missing

    @property
    def _mode(self) -> DrawMode:
        return "independent" if self.draw.draw_mode == replay_pb2.DRAW_MODE_INDEPENDENT else "stratified"

    def _divided(self, row_count: int, random: np.random.Generator) -> list[int]:
        """Divide rows among the shards."""
        return rows_by_shard(list(self.chances.values()), row_count, self._mode, random)

    def _expect(self, start: int, counts: Sequence[int]) -> list[RowRequest]:
        """Expect ``counts[shard]`` rows of each shard, from the place ``start``."""
        requests = []
        for shard_id, count in zip(self.chances, counts, strict=True):
            if count:
                self.asked[shard_id] = self.asked.get(shard_id, 0) + count
                self._expected.setdefault(shard_id, deque()).append(slice(start, start + count))
                requests.append(RowRequest(shard_id, count))
                start += count
        return requests


class PartMemory:
    """Provides the memory for the replies of one shard: that of the rounds to which they belong."""

    def __init__(self, shard_id: int, spare: Blank) -> None:
        """``spare`` provides the memory for replies that do not have the requested rows."""
        self._shard_id = shard_id
        self._spare = spare
        self.round: Round | None = None
        """The round of the next reply; None if it has no batch."""

    def __call__(self, row_count: int) -> dict[str, Array]:
        """Return uninitialized columns for the next reply; see `ColumnBuffers.blank`."""
        lent = None if self.round is None else self.round.lend(self._shard_id, row_count)
        return self._spare(row_count) if lent is None else lent
