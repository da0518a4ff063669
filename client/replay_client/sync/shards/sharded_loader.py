"""Inserts rows that were read from a table into a table on several servers; see `replay_client.sync.row_loader`.

Each episode goes to the shard that has the most room when the episode begins. In a table without steps, groups of up
to 256 consecutive rows are treated like episodes; they fill each shard before any of them evicts rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from replay_client._learning.answers import selected_rows
from replay_client._operations.reading import episode_places
from replay_client._shards.keys import global_keys
from replay_client.batch import Rows
from replay_client.errors import InvalidArgumentError, ReplayError
from replay_client.sync.row_loader import RowLoader, check_loadable
from replay_client.sync.shards.servers.members import Member

_PART_ROWS: Final = 256
"""Most consecutive rows that go to the same shard, in a table without steps."""


class ShardedLoader(RowLoader):
    """See the module, and `RowLoader`. For use in one thread."""

    def __init__(
        self,
        loaders: Sequence[tuple[Member, RowLoader]],
        rooms: Sequence[int],
        *,
        priorities: bool,
        heard: Callable[[Member, int], None],
    ) -> None:
        """Created by `ShardedTable.loader`.

        Args:
            loaders: the shards that get rows, at least one, each with a loader.
            rooms: number of rows that each of them can get before it evicts rows.
            priorities: whether rows keep their priorities.
            heard: called after each insert, with the shard and the number of rows ever inserted into it.
        """
        self.inserted = 0
        self.first_key = None
        self.is_contiguous = False
        self._loaders = loaders
        self._first = loaders[0][0].table
        self._has_priorities = priorities
        self._heard = heard
        self._rooms = np.array(rooms)  # of each shard, without what is on the way to it
        self._episodes: dict[int, tuple[int, int]] = {}  # by stream: its episode, and the place of its loader

    def insert(self, rows: Rows) -> None:
        """Insert rows exactly once; see `RowLoader.insert`."""
        steps = self._first.steps
        check_loadable(
            self._first.schema,
            rows,
            of_steps=steps is not None,
            priorities=self._has_priorities,
            may_lack=steps is not None,
        )
        where = self._by_part(rows.batch_size) if steps is None else self._by_episode(rows)
        for place in np.unique(where).tolist():
            self._insert_into(place, selected_rows(rows, np.flatnonzero(where == place)))

    def _insert_into(self, place: int, rows: Rows) -> None:
        member, loader = self._loaders[place]
        before = loader.inserted
        try:
            loader.insert(rows)
        except ReplayError as error:
            error.__notes__ = [f"{self.inserted + loader.inserted - before:,} rows were inserted before this error"]
            raise
        finally:
            if loader.inserted > before:
                self._heard(member, loader.next_key)
        self.inserted += loader.inserted - before
        if self.first_key is None and loader.first_key is not None:
            self.first_key = int(global_keys(member.id, np.array([loader.first_key]))[0])

    def _by_part(self, row_count: int) -> NDArray[np.intp]:
        """Choose a loader for each row, int64[n]."""
        where = np.empty(row_count, np.intp)
        first = 0
        while first < row_count:
            place = self._roomiest()
            room = int(self._rooms[place])
            part = where[first : first + (min(room, _PART_ROWS) if room > 0 else _PART_ROWS)]
            part[:] = place
            self._rooms[place] -= len(part)
            first += len(part)
        return where

    def _by_episode(self, rows: Rows) -> NDArray[np.intp]:
        """Choose a loader for each row, int64[n]; all rows of an episode get the same loader."""
        where = np.empty(rows.batch_size, np.intp)
        for mine in episode_places(rows):
            stream, episode = int(rows.streams[mine[0]]), int(rows.episodes[mine[0]])
            known = self._episodes.get(stream)
            if known is None or known[0] != episode:
                self._episodes[stream] = episode, self._roomiest()
            place = self._episodes[stream][1]
            where[mine] = place
            self._rooms[place] -= len(mine)
        return where

    def _roomiest(self) -> int:
        """Return the place of the loader whose shard has the most room."""
        return int(np.argmax(self._rooms))


def keys_refused(where: str) -> InvalidArgumentError:
    """Return the error for a request to keep the keys of a file."""
    return InvalidArgumentError.of_field("keys", "False for a table on several servers", where)
