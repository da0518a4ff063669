"""How full each shard is, as far as this process knows, so that new rows go to the emptier shards.

    fills = Fills()
    fills.add(source)                       # a writer that gets replies from the shards, and has rows for them
    fills.heard(shard_id, inserted)         # another reply said how many rows were ever inserted into a shard
    fills.rows(shard_id)                    # including rows that are not there yet

A reply tells only its own writer how full a shard is. If each writer went by its own replies, then all would choose a
shard whose replies are late, because none would know how many rows the others have for it.
"""

from __future__ import annotations

import threading
from typing import Protocol
from weakref import WeakSet


class RowSource(Protocol):
    """A writer of several shards."""

    def inserted(self, shard_id: int) -> int:
        """Return the number of rows ever inserted into a shard by anyone, according to the last reply; 0: unknown."""
        ...

    def coming(self, shard_id: int) -> int:
        """Return how many rows of this writer are not in the shard yet, including those of unfinished episodes."""
        ...


class Fills:
    """See the module. Thread-safe."""

    def __init__(self) -> None:
        """Begin without sources."""
        self._heard: dict[int, int] = {}
        self._sources: WeakSet[RowSource] = WeakSet()
        self._guard = threading.Lock()

    def add(self, source: RowSource) -> None:
        """Count the rows of a writer."""
        with self._guard:
            self._sources.add(source)

    def remove(self, source: RowSource) -> None:
        """Stop counting the rows of a writer, if it was not removed before."""
        with self._guard:
            self._sources.discard(source)

    def heard(self, shard_id: int, inserted: int) -> None:
        """Remember how many rows were ever inserted into a shard, from a reply."""
        with self._guard:
            self._heard[shard_id] = max(inserted, self._heard.get(shard_id, 0))

    def rows(self, shard_id: int) -> int:
        """Return the number of rows ever inserted into a shard, plus those that are coming; 0 if nothing is known."""
        with self._guard:
            sources, inserted = list(self._sources), self._heard.get(shard_id, 0)
        coming = sum(source.coming(shard_id) for source in sources)
        return max([inserted, *(source.inserted(shard_id) for source in sources)]) + coming
