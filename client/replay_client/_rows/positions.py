"""Finds the key of every position of drawn windows, on demand: most learners need only the keys of anchors.

A finder is a function without arguments that returns int64[batch, positions]. It can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from replay_proto.steps import Item, Sequences
from replay_proto.v1 import replay_pb2

KeyFinder: TypeAlias = Callable[[], NDArray[np.int64]]

NO_ROW: Final = -1
"""Stands for the key of a position without a row: before or after the episode."""


def finder_of(message: replay_pb2.Batch, item: Item) -> KeyFinder:
    """Return what finds the keys of the windows in a reply."""
    if isinstance(item, Sequences):
        return partial(_keys_of_windows, message, -item.burn_in, item.length)
    return partial(_keys_of_windows, message, 0, item.n_step + 1)


def finder_of_part(find: KeyFinder | None, rows: slice | int) -> KeyFinder | None:
    """Return what finds the keys of some of the windows. None stands for a table without windows."""
    return None if find is None else partial(_part, find, rows)


def _keys_of_windows(message: replay_pb2.Batch, first: int, stop: int) -> NDArray[np.int64]:
    """Return the keys of the rows ``first`` to ``stop``, exclusive, relative to each anchor."""
    keys = np.frombuffer(message.window_keys, "<i8")
    before, after = np.frombuffer(message.before, "<i4"), np.frombuffer(message.after, "<i4")
    anchors = (before + after + 1).cumsum(dtype=np.int64) - 1 - after
    offsets = np.arange(first, stop)
    has_row = (offsets >= -before[:, None]) & (offsets <= after[:, None])
    found = keys.take(anchors[:, None] + offsets, mode="clip")
    return np.where(has_row, found, NO_ROW)


def _part(find: KeyFinder, rows: slice | int) -> NDArray[np.int64]:
    return find()[rows]
