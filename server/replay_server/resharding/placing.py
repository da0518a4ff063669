"""Chooses a new shard for each row of a table.

    placement = placement_of(rows, new_shards=5)
    placement.sizes                                 # number of rows of each new shard
    for placed in placement.pieces():               # oldest first
        ...

Rows of a plain table are dealt out in turn. In a table of steps, all rows of an episode get the same shard, so that the
same windows can be drawn.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay_server.resharding.episodes import Episodes
from replay_server.resharding.merging import pieces
from replay_server.resharding.old_rows import OldRows

_WAITING = np.dtype(
    [("old_shard", np.intp), ("row", np.intp), ("shard", np.intp), ("position", float), ("rank", np.intp)]
)
"""Rows until their positions are reached. Ranks order rows at equal positions. If the episode of a row begins at the
row's position or later, the row gets the position where the episode begins, and the episode's rank; otherwise, its rank
is -1."""


class Placed(NamedTuple):
    """Rows, oldest first, with their new shards."""

    old_shards: NDArray[np.intp]
    """int64[n]: the old shard of each row."""
    rows: NDArray[np.intp]
    """int64[n]: the number of each row in its old shard."""
    shards: NDArray[np.intp]
    """int64[n]: the new shard of each row."""


class Placement(ABC):
    """The new shard of each row of a table."""

    rows: OldRows
    """The rows."""
    sizes: Sequence[int]
    """Number of rows of each new shard."""

    @abstractmethod
    def pieces(self) -> Iterator[Placed]:
        """Yield all rows in pieces, oldest first."""


def placement_of(rows: OldRows, new_shards: int) -> Placement:
    """Choose a new shard for each row.

    Raises:
        ReshardError: an episode of a table of steps has rows in several old shards.
    """
    return _ByEpisode(rows, new_shards) if rows.of_steps else _InTurn(rows, new_shards)


class _InTurn(Placement):
    """Deals out the rows of a plain table in turn."""

    def __init__(self, rows: OldRows, new_shards: int) -> None:
        self.rows = rows
        self.sizes = [len(range(shard, sum(rows.sizes), new_shards)) for shard in range(new_shards)]

    def pieces(self) -> Iterator[Placed]:
        first = 0
        for piece in pieces(self.rows.sizes, self.rows.at_once):
            after = first + len(piece.rows)
            yield Placed(piece.shards, piece.rows, np.arange(first, after) % len(self.sizes))
            first = after


class _ByEpisode(Placement):
    """Keeps the rows of each episode in one shard, in a table of steps."""

    def __init__(self, rows: OldRows, new_shards: int) -> None:
        self.rows = rows
        episodes = Episodes(rows)
        for piece in pieces(rows.sizes, rows.at_once):
            episodes.of_rows(piece)
        episodes.check_whole()
        counts = episodes.row_counts
        self._shards = _balanced(counts, new_shards)
        self._begins, self._ranks = episodes.begins(self._shards), episodes.ranks
        self.sizes = np.bincount(self._shards, weights=counts, minlength=new_shards).astype(np.int64).tolist()

    def pieces(self) -> Iterator[Placed]:
        episodes = Episodes(self.rows)
        waiting = np.empty(0, _WAITING)
        for piece in pieces(self.rows.sizes, self.rows.at_once):
            of_rows = episodes.of_rows(piece)
            new = np.empty(len(of_rows), _WAITING)
            new["old_shard"], new["row"], new["shard"] = piece.shards, piece.rows, self._shards[of_rows]
            begins = self._begins[of_rows]
            new["position"] = np.maximum(piece.positions, begins)
            new["rank"] = np.where(begins >= piece.positions, self._ranks[of_rows], -1)
            waiting = np.concatenate([waiting, new])
            waiting = waiting[np.lexsort((waiting["rank"], waiting["position"]))]
            due, waiting = np.split(waiting, [int(np.searchsorted(waiting["position"], piece.end))])
            for first in range(0, len(due), self.rows.at_once):  # many rows may have waited for one position
                part = due[first : first + self.rows.at_once]
                yield Placed(part["old_shard"], part["row"], part["shard"])


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
