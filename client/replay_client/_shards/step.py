"""A step draws one or more batches of a distributed table together, and collects their parts from the shards."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from replay_proto.v1 import replay_pb2

from replay_client._shards.mass import shards_of_rows
from replay_client.batch import Batch
from replay_client.draws import DrawMode


@dataclass(eq=False)
class Step:
    """See the module."""

    draw: replay_pb2.Draw
    """The options with which each batch is drawn."""
    chances: dict[int, float]
    """The probability with which each shard was chosen, by id."""
    smallest: Mapping[int, float]
    """The smallest probability in each shard before the draw, by id."""
    asked: dict[int, int] = field(default_factory=dict)
    """Number of rows requested from each shard that have not arrived, by id."""
    parts: list[tuple[int, Batch]] = field(default_factory=list)
    """Rows that have arrived, each part with the id of its shard."""
    batches: int = 1
    """Number of batches."""
    _asked_places: dict[int, deque[NDArray[np.intp]]] = field(default_factory=dict)
    _places: list[NDArray[np.intp]] = field(default_factory=list)  # of the parts

    @property
    def is_complete(self) -> bool:
        """Whether all rows have arrived."""
        return not self.asked

    def ask(self, random: np.random.Generator, places: NDArray[np.intp] | None = None) -> dict[int, int]:
        """Choose the shards of all rows, or only of those at ``places``. Return how many rows to draw in each shard."""
        ids, chances = list(self.chances), np.array(list(self.chances.values()))
        mode: DrawMode = "independent" if self.draw.draw_mode == replay_pb2.DRAW_MODE_INDEPENDENT else "stratified"
        if places is None:
            owners = shards_of_rows(chances, self.batches, self.draw.batch_size, mode, random).ravel()
        else:
            owners = shards_of_rows(chances, 1, len(places), mode, random)[0]
        counts = {}
        for index, shard_id in enumerate(ids):
            mine = np.flatnonzero(owners == index)
            if len(mine):
                counts[shard_id] = len(mine)
                self.asked[shard_id] = self.asked.get(shard_id, 0) + len(mine)
                self._asked_places.setdefault(shard_id, deque()).append(mine if places is None else places[mine])
        return counts

    def placed(self, random: np.random.Generator) -> Iterator[tuple[int, Batch, NDArray[np.intp]]]:
        """Yield each part's shard, rows, and their places in the batches, intp[n]."""
        for (shard_id, batch), places in zip(self.parts, self._places, strict=True):
            yield shard_id, batch, places

    def probabilities(self, shard_id: int, part: Batch) -> NDArray[np.float64]:
        """Return the probabilities in the whole table, float64[n], of rows that have arrived from a shard."""
        return part.probabilities * self.chances[shard_id]

    def smallest_probability(self) -> float:
        """Return the smallest probability in the whole table; 0 if it is not known."""
        smallest = dict(self.smallest)
        smallest.update((shard_id, part.smallest_probability) for shard_id, part in self.parts)
        of_shards = (chance * smallest[shard_id] for shard_id, chance in self.chances.items())
        return min((value for value in of_shards if value > 0), default=0.0)

    def total_mass(self, states: Iterable[replay_pb2.TableState]) -> float:
        """Return the mass of all rows, from the states of the shards."""
        return sum(state.total_mass for state in states)

    def without(self, shard_id: int) -> NDArray[np.intp]:
        """Discard a shard, and return the places, intp[n], whose rows must be drawn from the other shards instead.

        The chances of the other shards increase, as if this shard could not have been chosen.
        """
        if shard_id not in self.chances:
            return np.empty(0, np.intp)
        self.asked.pop(shard_id, None)
        missing = [np.empty(0, np.intp), *self._asked_places.pop(shard_id, ())]
        kept = []
        for part, places in zip(self.parts, self._places, strict=True):
            if part[0] == shard_id:
                missing.append(places)
            else:
                kept.append((part, places))
        self.parts, self._places = [part for part, _ in kept], [places for _, places in kept]
        del self.chances[shard_id]
        total = sum(self.chances.values())
        self.chances = {shard: chance / total for shard, chance in self.chances.items()} if total > 0 else {}
        return np.concatenate(missing)

    def arrived(self, shard_id: int, batch: Batch) -> None:
        """Add rows of a shard, unless it has been discarded."""
        if shard_id not in self.chances:
            return
        self.parts.append((shard_id, batch))
        self._places.append(self._asked_places[shard_id].popleft())
        self.asked[shard_id] -= batch.batch_size
        if not self.asked[shard_id]:
            del self.asked[shard_id]
