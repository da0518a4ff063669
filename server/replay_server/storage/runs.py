"""Runs of inserted rows: which stream and episode each row comes from.

These are stored with the rows as links: two words per row, stream and episode, or three in a table of steps, where the
third is ``step << 2 | EpisodeEnd``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

STEP_SHIFT: Final = np.uint64(2)
END_BITS: Final = np.uint64(3)
GOES_ON, TRUNCATED, TERMINATED = range(3)
"""How an episode stands after its last row, as in the protocol's `EpisodeEnd`."""
MAX_STEP: Final = (1 << 48) - 1


@dataclass(frozen=True)
class Runs:
    """Rows in order, divided into runs of consecutive steps of one episode."""

    row_counts: NDArray[np.int64]
    """int64[m]: rows of each run, at least 1."""
    streams: NDArray[np.uint64]
    """uint64[m]: stream of experience."""
    episodes: NDArray[np.uint64]
    """uint64[m]: episode within the stream."""
    first_steps: NDArray[np.int64] | None = None
    """int64[m]: number of the run's first step within its episode. None: not a table of steps."""
    ends: NDArray[np.uint8] | None = None
    """uint8[m]: whether the last row of a run goes on, or closes the episode. None: not a table of steps."""

    def links(self) -> NDArray[np.uint64]:
        """uint64[n, 2] or uint64[n, 3]: what is stored with each row."""
        if self.first_steps is None and len(self.row_counts) == 1:
            return np.broadcast_to(np.concatenate([self.streams, self.episodes]), (int(self.row_counts[0]), 2))
        words = [np.repeat(self.streams, self.row_counts), np.repeat(self.episodes, self.row_counts)]
        if self.first_steps is not None and self.ends is not None:
            after = np.cumsum(self.row_counts)
            places = np.arange(after[-1]) - np.repeat(after - self.row_counts, self.row_counts)
            steps = (np.repeat(self.first_steps, self.row_counts) + places).astype(np.uint64) << STEP_SHIFT
            steps[after - 1] |= self.ends
            words.append(steps)
        return np.stack(words, axis=1)


def steps_of(links: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """uint64[n]: numbers of the steps in their episodes. links: uint64[n, 3]."""
    return links[:, 2] >> STEP_SHIFT


def ends_of(links: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """uint8[n]: how the episode stands after each row. links: uint64[n, 3]."""
    return (links[:, 2] & END_BITS).astype(np.uint8)
