"""Samples the priorities and ages of a table's rows, fast enough for the event loop."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.index import DEAD_PRIORITY
from replay_server.table.table import Table

_PRIORITIES = 4096
"""Maximum number of priorities in a sample."""
_AGES = 257
"""Maximum number of ages in a sample. They divide the rows, from the newest to the oldest, into 256 equal steps."""


def some_priorities(table: Table, random: np.random.Generator) -> NDArray[np.float64]:
    """Return float64[n]: the priorities of all drawable rows or, in a large table, of a random sample of them."""
    if table.size <= _PRIORITIES:
        keys = np.arange(table.oldest, table.inserted)
    else:
        keys = random.integers(table.oldest, table.inserted, _PRIORITIES)
    priorities = table.priorities(keys)
    drawable: NDArray[np.float64] = priorities[priorities != DEAD_PRIORITY]
    return drawable


def some_ages_s(table: Table) -> NDArray[np.float64]:
    """Return float64[n]: ages in seconds of evenly spaced live rows, newest first."""
    if not table.size:
        return np.empty(0)
    keys = np.linspace(table.inserted - 1, table.oldest, min(table.size, _AGES)).round().astype(np.int64)
    return ages_s(table, keys)


def ages_s(table: Table, keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return float64[n]: ages in seconds of live rows. keys: int64[n]."""
    return np.array([table.figures.age_s(key) for key in keys.tolist()], np.float64)
