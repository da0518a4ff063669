"""Tracks the current episode and step of each stream of a writer, and which anchors the next rows complete.

In a table of steps, an anchor is complete once all rows of its window have been appended: ``forward`` steps later, or
when the episode ends. In other tables, every row is an anchor and is complete immediately.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray
from replay_proto.steps import WindowShape

_STREAM_BITS = 64
_ROWS = WindowShape(forward=0, backward=0)


class Streams:
    """The streams of one writer."""

    def __init__(self, count: int, window: WindowShape | None) -> None:
        """Begin an episode in each of ``count`` streams; ``window`` is None unless the table is a table of steps."""
        self.numbers = np.array([secrets.randbits(_STREAM_BITS) or 1 for _ in range(count)], np.uint64)
        """uint64[count]: random number of each stream, stored with its rows."""
        self.episodes = np.zeros(count, np.uint64)
        """uint64[count]: number of each stream's current episode, stored with its rows."""
        self.steps = np.zeros(count, np.int64)
        """int64[count]: number of each stream's next step in that episode."""
        self.next_steps = self.steps.data
        """A view of `steps`, faster for single values."""
        self._next_episodes = self.episodes.data
        self._forward, _, self._period = window or _ROWS

    def __len__(self) -> int:
        return len(self.numbers)

    def place(self, stream: int) -> tuple[int, int]:
        """Return the numbers of a stream's current episode and next step."""
        return self._next_episodes[stream], self.next_steps[stream]

    def completes(self, stream: int) -> bool:
        """Whether the next step of a stream completes the window of an anchor, ``forward`` steps earlier."""
        anchor: int = self.next_steps[stream] - self._forward
        return anchor >= 0 and anchor % self._period == 0

    def which_complete(self, streams: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return the result of `completes` for each of these streams, bool[n]."""
        anchors = self.steps[streams] - self._forward
        complete: NDArray[np.bool_] = (anchors >= 0) & (anchors % self._period == 0)
        return complete

    def completed_by_end(self, stream: int) -> int:
        """Return how many anchors' windows would be complete if a row closed the stream's current episode now."""
        end, period = self.next_steps[stream], self._period
        first = max(0, end - self._forward)
        return len(range(-(-first // period) * period, end, period))

    def begin_episode(self, stream: int) -> None:
        """Begin the next episode of a stream."""
        self._next_episodes[stream] += 1
        self.next_steps[stream] = 0
