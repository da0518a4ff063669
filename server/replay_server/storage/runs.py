"""The stream, episode and step of each row, called its link.

Inserts send links as runs. A run is a group of rows that are consecutive steps of one episode. A link is stored with
each row as two 64-bit words, stream and episode. Tables of steps have a third word, ``step << 2 | EpisodeEnd``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

STEP_SHIFT: Final = np.uint64(2)
END_BITS: Final = np.uint64(3)
GOES_ON, TRUNCATED, TERMINATED = range(3)
"""Whether a row closes its episode, and how; the values of `EpisodeEnd` in the protocol."""
MAX_STEP: Final = (1 << 48) - 1


@dataclass(frozen=True)
class Runs:
    """The runs of an insert's rows, in the order of the rows."""

    row_counts: NDArray[np.int64]
    """int64[m]: number of rows of each run, at least 1."""
    streams: NDArray[np.uint64]
    """uint64[m]: number of each run's stream of experience."""
    episodes: NDArray[np.uint64]
    """uint64[m]: number of each run's episode within its stream."""
    first_steps: NDArray[np.int64] | None = None
    """int64[m]: number of each run's first step within its episode. None unless the table is a table of steps."""
    ends: NDArray[np.uint8] | None = None
    """uint8[m]: whether and how each run's last row closes its episode. None unless the table is a table of steps."""

    def links(self) -> NDArray[np.uint64]:
        """Return the link of each row: uint64[n, 2], or uint64[n, 3] in a table of steps."""
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
    """Return the number of each step within its episode, uint64[n]. links: uint64[n, 3]."""
    return links[:, 2] >> STEP_SHIFT


def ends_of(links: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return whether and how each row closes its episode, uint8[n]. links: uint64[n, 3]."""
    return (links[:, 2] & END_BITS).astype(np.uint8)
