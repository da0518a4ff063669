"""Priority backends: how rows are chosen by their priorities.

A backend is one file with a class that is a `PriorityIndex`, and one line in `BACKENDS` here::

    parameters = make_parameters("sum_tree", {"alpha": 0.7})
    index = make_index("sum_tree", parameters, priorities, capacity)
    index.rebuild(LiveRows(oldest=0, size=0, slots=len(priorities)))     # before anything else
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from replay_proto.errors import FieldError

from replay_server.backends.index import DEAD_PRIORITY, Drawn, LiveRows, PriorityIndex
from replay_server.backends.parameters import read_parameters
from replay_server.backends.rank import RankIndex, RankParameters
from replay_server.backends.sum_tree import SumTree, SumTreeParameters
from replay_server.backends.uniform import UniformIndex, UniformParameters

__all__ = [
    "BACKENDS",
    "DEAD_PRIORITY",
    "Backend",
    "Drawn",
    "LiveRows",
    "Parameters",
    "PriorityIndex",
    "RankIndex",
    "RankParameters",
    "SumTree",
    "SumTreeParameters",
    "UniformIndex",
    "UniformParameters",
    "index_bytes",
    "make_index",
    "make_parameters",
    "most_rows",
    "warm_up_backend",
]


class Parameters(Protocol):
    """The parameters of one backend: a frozen dataclass of numbers that checks its fields."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


class Backend(Protocol):
    """What the class of a backend is to this registry."""

    @property
    def name(self) -> str:
        """What tables call it."""

    @property
    def most_bytes_per_slot(self) -> float:
        """Memory that an index takes at most per slot, in bytes, beside the priority array."""

    @property
    def most_rows(self) -> int:
        """Largest capacity of a table with it."""

    @property
    def Parameters(self) -> type[Any]:  # noqa: N802 (it is a class)
        """Its parameters, a frozen dataclass."""

    def __call__(self, parameters: Any, priorities: NDArray[np.float64], capacity: int) -> PriorityIndex:
        """Make an index; see `make_index`."""


SMALL_INDEX_BYTES = 1 << 16
"""What an index takes however few rows there are, at most."""
BACKENDS: Mapping[str, Backend] = {backend.name: backend for backend in (SumTree, RankIndex, UniformIndex)}
"""Every backend by its name."""


def most_rows(name: str) -> int:
    """Return the largest capacity of a table with a backend.

    Args:
        name: a key of `BACKENDS`.

    Raises:
        FieldError: if there is no such backend.
    """
    return _backend(name).most_rows


def index_bytes(name: str, slots: int) -> int:
    """Return how much memory an index of a backend takes at most, beside the priority array.

    Args:
        name: of the backend.
        slots: length of the ring.

    Raises:
        FieldError: if there is no such backend.
    """
    return math.ceil(_backend(name).most_bytes_per_slot * slots) + SMALL_INDEX_BYTES


def make_parameters(name: str, given: Mapping[str, float]) -> Parameters:
    """Return the parameters of a backend: those given, and defaults for the rest.

    Args:
        name: a key of `BACKENDS`.
        given: parameters by name.

    Raises:
        FieldError: if there is no such backend, it has no such parameter, or one is out of range.
    """
    made: Parameters = read_parameters(_backend(name).Parameters, name, given)
    return made


def make_index(name: str, parameters: Parameters, priorities: NDArray[np.float64], capacity: int) -> PriorityIndex:
    """Return an index without rows; call its `PriorityIndex.rebuild` before anything else.

    Args:
        name: a key of `BACKENDS`.
        parameters: of the same backend, by `make_parameters`.
        priorities: float64[slots], the table's priority array. It is left as it is until ``rebuild``.
        capacity: the most rows that are live at once, at most ``slots``.

    Raises:
        FieldError: if there is no such backend.
    """
    return _backend(name)(parameters, priorities, capacity)


def warm_up_backend(name: str) -> None:
    """Compile every kernel of a backend, or load it from the cache, by using each method once.

    Args:
        name: a key of `BACKENDS`.
    """
    slots = 4
    live = LiveRows(oldest=0, size=2, slots=slots)
    keys = np.arange(3, dtype=np.int64)
    fractions = np.array([0.0, 0.5])
    index = make_index(name, make_parameters(name, {}), np.full(slots, DEAD_PRIORITY), slots)
    index.rebuild(LiveRows(oldest=0, size=0, slots=slots))
    index.write(keys, np.array([0.0, 1.0, 2.0]))
    assert (index.smallest_priority, index.largest_priority) == (0.0, 2.0)
    index.clear(keys[2:])
    index.draw(fractions, live)
    index.smallest_probability(live)
    index.write(keys[:2], np.zeros(2))
    index.draw(fractions, live)
    index.rebuild(live)
    index.check()


def _backend(name: str) -> Backend:
    if name not in BACKENDS:
        raise FieldError("backend", f"one of {', '.join(BACKENDS)}", repr(name))
    return BACKENDS[name]
