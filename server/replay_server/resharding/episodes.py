"""Finds the episodes of a table of steps among the rows of its old shards.

Windows depend on which rows are neighbors in their stream: rows of one episode must stay neighbors, and rows that were
none must not become neighbors that look like consecutive steps. Writers number the episodes of a stream in ascending
order. If the rows of a stream return to an earlier episode, they count as part of the episode with the largest number
so far, and so stay behind its rows.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from replay_server.resharding.merging import Piece
from replay_server.resharding.old_rows import OldRows
from replay_server.resharding.parts import ReshardError


class Episodes:
    """Numbers episodes as their rows appear in the merged order."""

    def __init__(self, rows: OldRows) -> None:
        self._rows = rows
        self._newest: dict[tuple[int, int], int] = {}  # by stream and old shard: its newest episode
        self._returning: set[int] = set()  # streams that return to earlier episodes
        self._streams, self._numbers = array("Q"), array("Q")  # of each episode: its stream, its number there
        self._row_counts, self._ends = array("q"), array("d")

    @property
    def row_counts(self) -> NDArray[np.int64]:
        """int64[episodes]: number of rows of each episode so far."""
        return np.array(self._row_counts, np.int64)

    def of_rows(self, piece: Piece) -> NDArray[np.intp]:
        """Return the episode of each row of the next piece, int64[n]."""
        links = self._rows.links(piece.shards, piece.rows)
        order = np.lexsort((piece.shards, links[:, 0]))
        runs = np.column_stack([links[order, :2], piece.shards[order].astype(np.uint64)])
        is_start = np.ones(len(runs), bool)
        is_start[1:] = (runs[1:] != runs[:-1]).any(axis=1)
        starts = np.flatnonzero(is_start)
        after = np.append(starts, len(runs))[1:]
        fields = (*runs[starts].T.tolist(), (after - starts).tolist(), piece.positions[order[after - 1]].tolist())
        found = [self._count(*run) for run in zip(*fields, strict=True)]
        episodes = np.empty(len(runs), np.intp)
        episodes[order] = np.repeat(np.array(found, np.intp), after - starts)
        return episodes

    def _count(self, stream: int, number: int, shard: int, row_count: int, end: float) -> int:
        """Add a run of rows to its episode, and return that episode."""
        episode = self._newest.get((stream, shard))
        if episode is None or number > self._numbers[episode]:
            episode = self._newest[stream, shard] = len(self._streams)
            self._streams.append(stream)
            self._numbers.append(number)
            self._row_counts.append(0)
            self._ends.append(0.0)
        elif number < self._numbers[episode]:
            self._returning.add(stream)
        self._row_counts[episode] += row_count
        self._ends[episode] = end
        return episode

    @property
    def ranks(self) -> NDArray[np.intp]:
        """int64[episodes]: the place of each episode when they are sorted by stream and number."""
        ranks = np.empty(len(self._streams), np.intp)
        ranks[self._sorted] = np.arange(len(ranks))
        return ranks

    @property
    def _sorted(self) -> NDArray[np.intp]:
        """int64[episodes]: the episodes, sorted by stream and number."""
        return np.lexsort((np.array(self._numbers, np.uint64), np.array(self._streams, np.uint64)))

    def check_whole(self) -> None:
        """Check, when all rows have been numbered, that no episode has rows in several old shards.

        Raises:
            ReshardError: an episode has, or may have because its stream returns to earlier episodes.
        """
        order = self._sorted
        streams, numbers = np.array(self._streams, np.uint64)[order], np.array(self._numbers, np.uint64)[order]
        is_again = (streams[1:] == streams[:-1]) & (numbers[1:] == numbers[:-1])
        for stream in [*streams[1:][is_again].tolist(), *self._returning]:
            folders = [
                str(folder) for shard, folder in enumerate(self._rows.folders) if (stream, shard) in self._newest
            ]
            if len(folders) > 1:
                raise ReshardError(
                    f"table {self._rows.name!r}: expected each episode in one part, but stream {stream} has rows of "
                    f"one episode in several of these: {', '.join(folders)}; leave all but one of them out"
                )

    def begins(self, shards: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return float64[episodes]: the smallest position of each episode's rows in its new shard.

        If parts were made by an earlier resharding, the episodes of a stream are in several of them, and would be mixed
        when they are merged. So an episode begins at the end of the one before it in its stream and new shard. Of rows
        at equal positions, those of smaller `ranks` come first.

        Args:
            shards: int64[episodes]: the new shard of each episode.
        """
        ends: dict[tuple[int, int], float] = {}
        begins = np.zeros(len(shards))
        for episode in self._sorted.tolist():
            key = (self._streams[episode], int(shards[episode]))
            begins[episode] = ends.get(key, 0.0)
            ends[key] = max(begins[episode], self._ends[episode])
        return begins
