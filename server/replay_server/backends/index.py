"""The seam between a table and its priority backend: what every backend offers.

A backend keeps one priority per live row and draws rows by it. It knows keys, priorities and
the ring they lie in (key ``k`` in slot ``k % slots``); it knows nothing of columns or of gRPC.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

DEAD_PRIORITY = -1.0
"""What the priority array holds in a slot without a live row (a real priority is never negative)."""

MOST_ROWS = 1 << 40
"""Largest capacity of a table, whatever its backend: far above any memory, and far below the 48 bits that a key has."""

LEAST_PROBABILITY = float(np.finfo(np.float64).tiny)
"""Reported instead of a smaller one, whose inverse, an importance-sampling weight, would overflow."""


class LiveRows(NamedTuple):
    """The live rows of a table: ``size`` consecutive keys, from ``oldest`` on."""

    oldest: int
    """Key of the oldest live row."""
    size: int
    """Number of live rows."""
    slots: int
    """Length of the ring: key ``k`` lies in slot ``k % slots``."""


def live_slots(live: LiveRows) -> NDArray[np.int64]:
    """Return int64[size]: the slots of the live rows, oldest first."""
    return np.arange(live.oldest, live.oldest + live.size, dtype=np.int64) % live.slots


class Drawn(NamedTuple):
    """Rows drawn by a backend, in the order of the fractions they were drawn for."""

    keys: NDArray[np.int64]
    """int64[batch]: keys of live rows, repeats possible (draws are with replacement)."""
    probabilities: NDArray[np.float64]
    """float64[batch]: mass over total mass of each row, at the moment of drawing."""


class PriorityIndex(ABC):
    """Priorities of the live rows, and draws in proportion to the mass they are turned into.

    An index is given the table's priority array (a mapped file) when it is made. It is the only one that writes to
    it; everything else it keeps on the heap and can rebuild from that array. Callers have validated what they pass:
    keys are live or about to be, distinct within a call, and priorities are finite, not negative and at most
    `priority_limit`.
    """

    name: ClassVar[str]
    """What tables call it."""
    most_rows: ClassVar[int] = MOST_ROWS
    """Largest capacity of a table with it."""
    most_bytes_per_slot: ClassVar[float]
    """Memory that an index takes at most per slot, in bytes, beside the priority array."""
    Parameters: ClassVar[type[Any]]
    """A frozen dataclass of numbers that checks its fields."""
    priority_limit: float = math.inf
    """The largest priority whose mass this index can add up exactly; ``inf`` if any finite one will do."""

    def __init__(self, parameters: Any, priorities: NDArray[np.float64]) -> None:
        """Make an index without rows; call `rebuild` before anything else.

        Args:
            parameters: how priorities are turned into masses, a `Parameters`.
            priorities: float64[slots], the table's priority array. It is left as it is until ``rebuild``.
        """
        self.parameters = parameters
        self._priorities = np.asarray(priorities)

    @property
    @abstractmethod
    def total_mass(self) -> float:
        """Sum of the mass of all live rows."""

    @property
    @abstractmethod
    def largest_priority(self) -> float:
        """Largest priority of a live row; 0.0 when there is none."""

    @property
    @abstractmethod
    def smallest_priority(self) -> float:
        """Smallest priority of a live row; 0.0 when there is none."""

    @abstractmethod
    def write(self, keys: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Set the priorities of rows, whether they are new or already there.

        Args:
            keys: int64[n], distinct.
            priorities: float64[n]; `DEAD_PRIORITY` forgets a row.
        """

    def clear(self, keys: NDArray[np.int64]) -> None:
        """Forget rows that are no longer live. keys: int64[n], distinct, each written and not yet cleared."""
        self.write(keys, np.full(len(keys), DEAD_PRIORITY))

    def rebuild(self, live: LiveRows) -> None:
        """Start anew from the priority array: only the rows of ``live`` count, other slots become dead."""
        first = live.oldest % live.slots
        end = first + live.size
        if end <= live.slots:
            self._priorities[:first] = DEAD_PRIORITY
            self._priorities[end:] = DEAD_PRIORITY
        else:
            self._priorities[end - live.slots : first] = DEAD_PRIORITY
        self._recompute(live)

    @abstractmethod
    def _recompute(self, live: LiveRows) -> None:
        """Compute everything from the priority array."""

    @abstractmethod
    def draw(self, fractions: NDArray[np.float64], live: LiveRows) -> Drawn:
        """Turn points of the total mass, given as fractions of it, into the rows that lie there.

        Args:
            fractions: float64[batch] in [0, 1), in any order.
            live: the live rows; at least one.

        Returns:
            One row per fraction. A row of zero mass is never returned, unless all are of zero
            mass: then the draw is uniform over the live rows.
        """

    @abstractmethod
    def masses(self, priorities: NDArray[np.float64], ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return float64[n]: the masses that rows of these priorities and ranks have, whether there are such or not.

        Args:
            priorities: float64[n].
            ranks: int64[n], from 1, the largest priority; of equal ones the newest comes first.
        """

    @abstractmethod
    def smallest_probability(self, live: LiveRows) -> float:
        """Probability of the least probable live row of non-zero mass (1 / size when total mass is zero)."""
