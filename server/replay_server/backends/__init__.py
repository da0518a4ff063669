"""Priority backends, which draw rows by priority.

A backend is a subclass of `PriorityIndex` in a file of its own, and is listed in `BACKENDS`. To use one::

    index = make_index("sum_tree", {"alpha": 0.7}, priorities)
    index.rebuild(LiveRows(oldest=0, size=0, slots=len(priorities)))     # before anything else
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from replay_server.backends.index import DEAD_PRIORITY, Drawn, LiveRows, PriorityIndex
from replay_server.backends.rank import RankIndex, RankParameters
from replay_server.backends.sum_tree import SumTree, SumTreeParameters
from replay_server.backends.uniform import UniformIndex, UniformParameters
from replay_server.kernels.compile import Floats

__all__ = [
    "BACKENDS",
    "DEAD_PRIORITY",
    "Drawn",
    "LiveRows",
    "PriorityIndex",
    "RankIndex",
    "RankParameters",
    "SumTree",
    "SumTreeParameters",
    "UniformIndex",
    "UniformParameters",
    "index_bytes",
    "make_index",
    "warm_up_backend",
]

SMALL_INDEX_BYTES = 1 << 16
"""Upper bound on the fixed memory of an index."""
BACKENDS: Mapping[str, type[PriorityIndex]] = {backend.name: backend for backend in (SumTree, RankIndex, UniformIndex)}
"""Every backend by its name."""


def index_bytes(name: str, slots: int) -> int:
    """Return an upper bound on the memory of an index with ``slots`` priorities, excluding the priority array."""
    return math.ceil(BACKENDS[name].most_bytes_per_slot * slots) + SMALL_INDEX_BYTES


def make_index(name: str, given: Mapping[str, float], priorities: Floats) -> PriorityIndex:
    """Create an index; call its `PriorityIndex.rebuild` before anything else.

    ``given`` has parameters by name; missing ones get their defaults. ``priorities`` is as for `PriorityIndex`.
    """
    backend = BACKENDS[name]
    return backend(backend.Parameters(**given), priorities)


def warm_up_backend(name: str) -> None:
    """Compile or load every kernel of a backend by calling each method once."""
    slots = 4
    live = LiveRows(oldest=0, size=2, slots=slots)
    keys = np.arange(3, dtype=np.int64)
    fractions = np.array([0.0, 0.5])
    index = make_index(name, {}, np.full(slots, DEAD_PRIORITY))
    index.rebuild(LiveRows(oldest=0, size=0, slots=slots))
    index.write(keys, np.array([0.0, 1.0, 2.0]))
    assert (index.smallest_priority, index.largest_priority) == (0.0, 2.0)
    index.clear(keys[2:])
    index.draw(fractions, live)
    index.smallest_probability(live)
    index.write(keys[:2], np.zeros(2))
    index.draw(fractions, live)
    index.rebuild(live)
