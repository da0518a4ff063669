"""One batch of a distributed table, while its parts arrive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from replay_proto.v1 import replay_pb2

from replay_client.batch import Batch


@dataclass(eq=False)
class Step:
    """See the module."""

    draw: replay_pb2.Draw
    """The whole draw."""
    chances: dict[int, float]
    """The probability of each shard with which its rows were drawn, by id."""
    smallest: Mapping[int, float]
    """The smallest probability in each shard, by id, before the draw."""
    asked: dict[int, int] = field(default_factory=dict)
    """Rows requested from each shard that have not arrived, by id."""
    parts: list[tuple[int, Batch]] = field(default_factory=list)
    """Rows that have arrived, with the id of their shard."""

    @property
    def is_complete(self) -> bool:
        """Whether all rows have arrived."""
        return not self.asked

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

    def without(self, shard_id: int) -> int:
        """Discard a shard, and return how many rows have to be drawn in the others instead.

        The other rows were then drawn with larger probabilities: the chances are those on condition of another shard.
        """
        if shard_id not in self.chances:
            return 0
        missing = self.asked.pop(shard_id, 0)
        missing += sum(batch.batch_size for shard, batch in self.parts if shard == shard_id)
        self.parts = [part for part in self.parts if part[0] != shard_id]
        del self.chances[shard_id]
        total = sum(self.chances.values())
        self.chances = {shard: chance / total for shard, chance in self.chances.items()} if total > 0 else {}
        return missing

    def arrived(self, shard_id: int, batch: Batch) -> None:
        """Add rows of a shard, unless it has been discarded."""
        if shard_id not in self.chances:
            return
        self.parts.append((shard_id, batch))
        self.asked[shard_id] -= batch.batch_size
        if not self.asked[shard_id]:
            del self.asked[shard_id]
