"""Distribution of the rows of a table, from `Table.inspect`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from replay_proto.v1 import replay_pb2

from replay_client.results import mirrored
from replay_client.results.description import TableDescription
from replay_client.results.stats import TimesSampled


@dataclass(frozen=True, eq=False)
class LargestRows:
    """The rows with the largest priorities, in descending order and, if equal, newest first. They are exact."""

    row_keys: NDArray[np.int64]
    """int64[k]; k is at most the number given to `Table.inspect`."""
    priorities: NDArray[np.float64]
    """float64[k]."""
    probabilities: NDArray[np.float64]
    """float64[k]: probability of each row; 1 in a queue."""
    ages_s: NDArray[np.float64]
    """float64[k]: seconds since each row was inserted, or since the server started."""
    times_sampled: NDArray[np.int64]
    """int64[k]: how often each row was drawn since it was inserted, or since the server started."""


@dataclass(frozen=True, eq=False)
class Inspection:
    """The rows of a table, captured within a few milliseconds."""

    table: TableDescription
    """The table's description."""
    looked_at: int
    """Number of rows examined: all rows, or 2^20 random rows of a larger table."""
    total_mass: float
    """Mass of all live rows."""
    ranks: NDArray[np.int64]
    """int64[m]: selected ranks, ascending from 1 (the largest priority); empty for an empty table."""
    priorities: NDArray[np.float64]
    """float64[m]: priorities of the rows with these ranks."""
    probabilities: NDArray[np.float64]
    """float64[m]: their probabilities; 1 in a queue."""
    largest: LargestRows
    """The rows with the largest priorities."""
    ages_s: NDArray[np.float64]
    """float64[n]: ages of evenly spaced live rows, in seconds, newest first."""
    times_sampled: tuple[TimesSampled, ...]
    """Histogram of live rows by number of draws; exact."""
    is_mixed: bool = False
    """Whether the rows are on several servers; ranks beyond `largest` are then estimates."""
    shards_away: tuple[int, ...] = ()
    """Ids of the shards whose servers are away; the figures do not include them."""

    @property
    def is_exact(self) -> bool:
        """Whether all ranks are exact; otherwise, ranks beyond `largest` are estimated from `looked_at` rows."""
        return self.looked_at >= self.table.size and not self.is_mixed

    @property
    def rows(self) -> NDArray[np.float64]:
        """float64[m]: for each of `ranks`, how many rows of the table have a rank that is closest to it."""
        if not len(self.ranks):
            return np.empty(0)
        between = (self.ranks[1:] + self.ranks[:-1]) / 2
        return np.diff(np.concatenate([[0.5], between, [max(self.table.size, int(self.ranks[-1])) + 0.5]]))

    def weights(self, beta: float) -> NDArray[np.float64]:
        """Compute the importance-sampling weights of `ranks` (Schaul et al. 2016, section 3.4).

        Args:
            beta: exponent of the weights, at least 0.

        Returns:
            float64[m]: ``(size * probability) ** -beta``, normalized as with `weight_norm="table"`; 0 for rows with
            probability 0.
        """
        drawn = self.probabilities > 0
        weights = np.zeros(len(self.probabilities))
        if drawn.any():
            weights[drawn] = (self.probabilities[drawn].min() / self.probabilities[drawn]) ** beta
        return weights

    @classmethod
    def from_proto(cls, message: replay_pb2.InspectResponse) -> Inspection:
        """Convert a message."""
        largest = message.largest
        return cls(
            table=TableDescription.from_proto(message.table),
            looked_at=message.looked_at,
            total_mass=message.total_mass,
            ranks=_array(message.by_rank.ranks, "<i8"),
            priorities=_array(message.by_rank.priorities, "<f8"),
            probabilities=_array(message.by_rank.probabilities, "<f8"),
            largest=LargestRows(
                row_keys=_array(largest.keys, "<i8"),
                priorities=_array(largest.priorities, "<f8"),
                probabilities=_array(largest.probabilities, "<f8"),
                ages_s=_array(largest.ages_s, "<f8"),
                times_sampled=_array(largest.times_sampled, "<i8"),
            ),
            ages_s=_array(message.ages_s, "<f8"),
            times_sampled=tuple(mirrored(TimesSampled, bar) for bar in message.times_sampled),
        )


def _array(data: bytes, dtype: str) -> NDArray[Any]:
    return np.frombuffer(data, dtype).copy()
