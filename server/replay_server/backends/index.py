"""The interface of priority backends.

A backend stores one priority per live row and draws rows by priority. It knows keys, priorities and the ring of slots
(key ``k`` is in slot ``k % slots``), but neither columns nor gRPC.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
from replay_proto.errors import FieldError

from replay_server.kernels.compile import Floats, Integers, as_kernel_input, kernel

DEAD_PRIORITY = -1.0
"""Marks slots without a live row in the priority array (real priorities are never negative)."""
FIRST_PRIORITY = 1.0
"""Priority of new rows if no live row has a priority above 0 (Schaul et al. 2016, algorithm 1, line 2)."""

MOST_ROWS = 1 << 40
"""Largest capacity of any table: far more rows than fit into memory, and far fewer than the 2^48 keys."""

LEAST_PROBABILITY = float(np.finfo(np.float64).tiny)
"""Reported instead of smaller probabilities, whose importance-sampling weights would overflow."""


class LiveRows(NamedTuple):
    """The live rows of a table: ``size`` consecutive keys starting at ``oldest``."""

    oldest: int
    """Key of the oldest live row."""
    size: int
    """Number of live rows."""
    slots: int
    """Size of the ring: key ``k`` is in slot ``k % slots``."""


def live_slots(live: LiveRows) -> Integers:
    """Return int64[size]: the slots of the live rows, oldest first."""
    return np.arange(live.oldest, live.oldest + live.size, dtype=np.int64) % live.slots


class Drawn(NamedTuple):
    """Rows drawn by a backend: one for each fraction, in the same order."""

    keys: Integers
    """int64[batch]: keys of live rows, possibly repeated (draws are with replacement)."""
    probabilities: Floats
    """float64[batch]: mass of each row divided by the total mass, at the time of the draw."""


class PriorityIndex(ABC):
    """Stores the priorities of live rows, and draws rows in proportion to their mass.

    An index owns the table's priority array (a mapped file): only the index writes to it. All other state is on the
    heap and can be rebuilt from that array. Callers validate arguments: the keys of a call are distinct, and each is
    live or about to become live; priorities are finite, non-negative and at most `priority_limit`.
    """

    name: ClassVar[str]
    """Name of the backend in table configs."""
    most_rows: ClassVar[int] = MOST_ROWS
    """Largest capacity of a table with this backend."""
    most_bytes_per_slot: ClassVar[float]
    """Upper bound on memory per slot in bytes, excluding the priority array."""
    is_ranked: ClassVar[bool] = False
    """Whether the mass of a row depends on the other rows."""
    Parameters: ClassVar[type[Any]]
    """A frozen dataclass of numbers that checks its fields."""
    priority_limit: float = math.inf
    """Largest priority that this index supports; ``inf`` if it supports every finite one."""

    def __init__(self, parameters: Any, priorities: Floats) -> None:
        """Create an index; call `rebuild` before anything else. ``parameters`` are an instance of `Parameters`.

        ``priorities``, float64[slots], is the table's priority array. It is not read before ``rebuild``.
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
    def write(self, keys: Integers, priorities: Floats) -> None:
        """Set the priorities, float64[n], of new or existing rows with these distinct keys, int64[n].

        `DEAD_PRIORITY` removes a row.
        """

    def clear(self, keys: Integers) -> None:
        """Remove rows that are no longer live. keys: int64[n], distinct, written and not yet cleared."""
        self.write(keys, np.full(len(keys), DEAD_PRIORITY))

    def blank(self) -> Self:
        """Return an index of the same kind and priority array, without rows. May run in any thread.

        Neither reads nor changes the priority array. Before anything is written to the new index, `forget` must have
        marked all rows of this one as dead.
        """
        return type(self)(self.parameters, self._priorities)

    def forget(self, gone: LiveRows) -> None:
        """Mark rows as dead in the priority array, and change nothing else. May run in any thread."""
        first = gone.oldest % gone.slots
        end = first + gone.size
        self._priorities[first : min(end, gone.slots)] = DEAD_PRIORITY
        self._priorities[: max(0, end - gone.slots)] = DEAD_PRIORITY

    def rebuild(self, live: LiveRows) -> None:
        """Rebuild from the priority array: keep the rows in ``live``, and mark other slots as dead."""
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
        """Compute all other state from the priority array."""

    @abstractmethod
    def draw(self, fractions: Floats, live: LiveRows) -> Drawn:
        """Inverse-CDF lookup: map each fraction of the total mass to the row whose interval of mass contains it.

        Args:
            fractions: float64[batch] in [0, 1), in any order.
            live: the live rows, at least one.

        Returns:
            One row per fraction. Rows with zero mass are never returned, unless all have zero mass; then the draw is
            uniform over the live rows.
        """

    @abstractmethod
    def masses(self, priorities: Floats, ranks: Integers) -> Floats:
        """Return the masses, float64[n], of hypothetical rows with these priorities, float64[n], and ranks, int64[n].

        Rank 1 has the largest priority; among rows with equal priority, newer rows rank first.
        """

    @abstractmethod
    def smallest_probability(self, live: LiveRows) -> float:
        """Return the smallest probability of a live row with non-zero mass; 1 / size if the total mass is zero."""


T = TypeVar("T")


def read_parameters(kind: type[T], name: str, given: Mapping[str, Any]) -> T:
    """Create the parameters of backend ``name``, with defaults for missing ones."""
    accepted = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for field in given:
        if field not in accepted:
            raise FieldError(
                field, f"a parameter of {name} ({', '.join(accepted) or 'it has none'})", repr(given[field])
            )
    return kind(**given)


def require_not_negative(field: str, value: float) -> None:
    """Raise `FieldError` unless ``value`` is a finite number of at least 0."""
    if not _is_finite_number(value) or value < 0.0:
        raise FieldError(field, "a finite number of at least 0", repr(value))


def require_positive(field: str, value: float) -> None:
    """Raise `FieldError` unless ``value`` is a finite number above 0."""
    if not _is_finite_number(value) or value <= 0.0:
        raise FieldError(field, "a finite number above 0", repr(value))


def _is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@kernel
def key_in_slot(slot: int, oldest: int, oldest_slot: int, slots: int) -> int:
    """Return the key of the live row in ``slot``; ``oldest_slot`` is the slot of the key ``oldest``."""
    distance = slot - oldest_slot
    if distance < 0:
        distance += slots
    return oldest + distance


@kernel
def _draw_evenly(fractions: Floats, oldest: int, size: int) -> tuple[Integers, Floats]:
    batch = len(fractions)
    keys = np.empty(batch, dtype=np.int64)
    probabilities = np.empty(batch, dtype=np.float64)
    for i in range(batch):
        # The product may round up to ``size``.
        keys[i] = oldest + min(int(fractions[i] * size), size - 1)
        probabilities[i] = 1.0 / size
    return keys, probabilities


def draw_evenly(fractions: Floats, live: LiveRows) -> Drawn:
    """Draw uniformly from at least one live row."""
    return Drawn(*_draw_evenly(as_kernel_input(fractions), live.oldest, live.size))
