"""Rows that draws take before they draw others by priority: each new row once, the newest first.

With the rest of the batch drawn uniformly, this is the online queue of DreamerV3 (Hafner et al. 2023,
arXiv:2301.04104); with one row in a batch, it is combined experience replay (Zhang and Sutton 2017, arXiv:1712.01275).
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray
from replay_proto.steps import Sequences, Steps

MOST_REMEMBERED: Final = 1 << 16
"""Maximum number of new rows that wait for a draw; older ones can be drawn only by priority."""


class NewRowsFirst:
    """The new rows of a table that no newest-first draw has returned yet."""

    def __init__(self, steps: Steps | None) -> None:
        """Begin without rows. ``steps`` says what the table draws; None: rows."""
        self._waiting: deque[int] = deque(maxlen=MOST_REMEMBERED)
        item = None if steps is None else steps.item
        self.stride = -(-item.length // item.period) * item.period if isinstance(item, Sequences) else 1
        """Of sequences, only those whose first step is a multiple of this, so that they do not overlap."""

    @property
    def count(self) -> int:
        """Number of rows that wait for a draw."""
        return len(self._waiting)

    def add(self, keys: NDArray[np.int64]) -> None:
        """Remember rows that can now be drawn. keys: int64[n], in order of insertion."""
        self._waiting.extend(keys.tolist())

    def take(self, count: int) -> NDArray[np.int64]:
        """Return the ``count`` newest rows, newest first, and forget them; there must be as many."""
        return np.array([self._waiting.pop() for _ in range(count)], np.int64)
