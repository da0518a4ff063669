"""Chooses a new shard for each row of a table.

    placement = placement_of(rows, new_shards=5)
    placement.sizes                                 # rows of each new shard
    for piece, shards in placement.pieces():        # oldest first
        ...

Rows of a plain table are dealt out in turn. In a table of steps, all rows of an episode get the same shard, so that the
same windows can be drawn.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from replay_server.resharding.merging import Piece, pieces
from replay_server.resharding.old_rows import OldRows
from replay_server.resharding.parts import ReshardError


@dataclass(frozen=True)
class Placement:
    """The new shard of each row."""

    rows: OldRows
    sizes: Sequence[int]
    """Number of rows of each new shard."""
    of_episodes: NDArray[np.intp] | None
    """int64[episodes]: the new shard of each episode, as `_Episodes` numbers them. None for a plain table."""

    def pieces(self) -> Iterator[tuple[Piece, NDArray[np.intp]]]:
        """Yield all rows in pieces, oldest first, with the new shard of each row, int64[n]."""
        first = 0
        episodes = _Episodes(self.rows)
        for piece in pieces(self.rows.sizes, self.rows.at_once):
            if self.of_episodes is None:
                yield piece, np.arange(first, first + len(piece.order)) % len(self.sizes)
            else:
                yield piece, self.of_episodes[episodes.numbers(piece)]
            first += len(piece.order)


def placement_of(rows: OldRows, new_shards: int) -> Placement:
    """Choose a new shard for each row.

    Raises:
        ReshardError: a stream of a table of steps has rows in several old shards.
    """
    if not rows.of_steps:
        size = sum(rows.sizes)
        return Placement(rows, [len(range(shard, size, new_shards)) for shard in range(new_shards)], None)
    episodes = _Episodes(rows)
    for piece in pieces(rows.sizes, rows.at_once):
        episodes.numbers(piece)
    counts = np.array(episodes.row_counts, np.int64)
    of_episodes = _balanced(counts, new_shards)
    sizes = np.bincount(of_episodes, weights=counts, minlength=new_shards).astype(np.int64)
    return Placement(rows, sizes.tolist(), of_episodes)


def _balanced(counts: NDArray[np.int64], shards: int) -> NDArray[np.intp]:
    """Deal out episodes with these numbers of rows, the longest first, each to the shard with the fewest rows.

    The shards' numbers of rows differ by at most the longest episode. Among episodes of equal length, the oldest is
    first, so that all shards get old and new rows.
    """
    chosen = np.empty(len(counts), np.intp)
    fullness = [(0, shard) for shard in range(shards)]
    for episode in np.argsort(-counts, kind="stable").tolist():
        rows, chosen[episode] = fullness[0]
        heapq.heapreplace(fullness, (rows + int(counts[episode]), int(chosen[episode])))
    return chosen


@dataclass
class _Stream:
    """The newest rows of a stream so far."""

    shard: int
    newest: int
    """Largest number of an episode of the stream."""
    number: int
    """Number of that episode among all episodes of the table."""


class _Episodes:
    """Numbers the episodes of a table of steps as their rows appear in the merged order.

    Windows depend on which rows are neighbors in their stream, so rows of two episodes must not become neighbors that
    look like consecutive steps. Writers number the episodes of a stream in ascending order. If an episode does not have
    the largest number in its stream so far, its rows count as part of the episode that has.
    """

    def __init__(self, rows: OldRows) -> None:
        self.row_counts = array("q")
        """Number of rows of each episode so far."""
        self._rows = rows
        self._streams: dict[int, _Stream] = {}

    def numbers(self, piece: Piece) -> NDArray[np.intp]:
        """Return the episode of each row of the next piece, int64[n]."""
        links, shards = self._rows.links(piece), piece.shards
        order = np.argsort(links[:, 0], kind="stable")
        runs = np.column_stack([links[order, :2], shards[order].astype(np.uint64)])
        is_start = np.ones(len(runs), bool)
        is_start[1:] = (runs[1:] != runs[:-1]).any(axis=1)
        starts = np.flatnonzero(is_start)
        row_counts = np.diff(np.append(starts, len(runs)))
        fields = (*runs[starts].T.tolist(), row_counts.tolist())
        episodes = [self._number(*run) for run in zip(*fields, strict=True)]
        numbers = np.empty(len(runs), np.intp)
        numbers[order] = np.repeat(np.array(episodes, np.intp), row_counts)
        return numbers

    def _number(self, stream: int, episode: int, shard: int, row_count: int) -> int:
        known = self._streams.get(stream)
        if known is None:
            known = self._streams[stream] = _Stream(shard, episode, self._begin())
        elif known.shard != shard:
            raise ReshardError(
                f"table {self._rows.name!r}: expected each stream in one part, but stream {stream} has rows in "
                f"{self._rows.folders[known.shard]} and {self._rows.folders[shard]}; leave one of these parts out"
            )
        elif episode > known.newest:
            known.newest, known.number = episode, self._begin()
        self.row_counts[known.number] += row_count
        return known.number

    def _begin(self) -> int:
        """Begin another episode, and return its number."""
        self.row_counts.append(0)
        return len(self.row_counts) - 1
