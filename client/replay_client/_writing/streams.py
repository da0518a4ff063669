"""Where the streams of a writer are in their episodes, and which anchors their rows complete.

An anchor is complete once its window is. In a table of steps, this happens ``forward`` steps later, or when the episode
ends; in a table of rows, every row is complete at once.
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
        """Begin an episode in each; ``window`` is None in a table of rows."""
        self.numbers = np.array([secrets.randbits(_STREAM_BITS) or 1 for _ in range(count)], np.uint64)
        """uint64[count]: random numbers, stored with every row."""
        self.episodes = np.zeros(count, np.uint64)
        """uint64[count]: the current episode of each, stored with every row."""
        self.steps = np.zeros(count, np.int64)
        """int64[count]: number of the next step in that episode."""
        self.next_steps = self.steps.data
        """The same; faster for single values."""
        self._next_episodes = self.episodes.data
        self._forward, _, self._period = window or _ROWS

    def __len__(self) -> int:
        return len(self.numbers)

    def place(self, stream: int) -> tuple[int, int]:
        """The numbers of the current episode and the next step of a stream."""
        return self._next_episodes[stream], self.next_steps[stream]

    def completes(self, stream: int) -> bool:
        """Whether the next step of a stream completes an anchor, ``forward`` steps back."""
        anchor: int = self.next_steps[stream] - self._forward
        return anchor >= 0 and anchor % self._period == 0

    def which_complete(self, streams: NDArray[np.intp]) -> NDArray[np.bool_]:
        """bool[n]: `completes` for each of several streams."""
        anchors = self.steps[streams] - self._forward
        complete: NDArray[np.bool_] = (anchors >= 0) & (anchors % self._period == 0)
        return complete

    def completed_by_end(self, stream: int) -> int:
        """How many anchors are completed by the row that closes the current episode of a stream."""
        end, period = self.next_steps[stream], self._period
        first = max(0, end - self._forward)
        return len(range(-(-first // period) * period, end, period))

    def begin_episode(self, stream: int) -> None:
        """Begin the next episode of a stream."""
        self._next_episodes[stream] += 1
        self.next_steps[stream] = 0
