"""Plans reads of all rows of a table, and arranges the rows that arrive; without I/O.

plan = RowPlan(description, chunk=10_000, order="key")
for keys in plan.parts():
    yield from plan.arrived(keys, read(keys))
yield from plan.rest()
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from replay_client._learning.answers import joined_rows, selected_rows
from replay_client._learning.one_caller import OneCaller
from replay_client.batch import Rows
from replay_client.draws import checked_count
from replay_client.errors import InvalidArgumentError
from replay_client.results.description import TableDescription

log = logging.getLogger(__name__)

RowOrder = Literal["key", "episode"]
"""Order in which `Table.rows` returns rows."""
CHUNK_ROWS: Final = 10_000
"""Default number of rows that are read at once."""


def episode_places(rows: Rows) -> list[NDArray[np.intp]]:
    """Return the indices, int64[n], of the rows of each episode in ``rows``, which are in order of their keys."""
    order = np.argsort(rows.streams, kind="stable")
    streams, episodes = rows.streams[order], rows.episodes[order]
    is_other = (streams[1:] != streams[:-1]) | (episodes[1:] != episodes[:-1])
    return np.split(order, np.flatnonzero(is_other) + 1) if rows.batch_size else []


class RowPlan:
    """Plans which rows are read, and returns them in order of insertion, or episode by episode in chunks."""

    def __init__(
        self, table: TableDescription, *, chunk: int, order: RowOrder = "key", keys: Sequence[range] | None = None
    ) -> None:
        """Plan to read the live rows of ``table``. ``keys``: ranges of their keys; None: the keys are consecutive."""
        if order not in get_args(RowOrder):
            raise InvalidArgumentError.of_field("order", "'key' or 'episode'", repr(order))
        if order == "episode" and table.steps is None:
            raise InvalidArgumentError.of_field("order", "'key' for a table without steps", repr(order))
        self.name = table.name
        self.inserted = table.inserted
        """Rows ever inserted into the table."""
        self.total = table.size
        """Number of live rows."""
        self.overtaken = 0
        """Number of rows that were removed before they could be read, so far."""
        self.chunk = checked_count("chunk", chunk)
        """Maximum rows per `Rows`."""
        self._keys = [range(self.inserted - self.total, self.inserted)] if keys is None else keys
        self._episodes = _Episodes() if order == "episode" else None
        self._ready: list[Rows] = []

    def parts(self) -> Iterator[NDArray[np.int64]]:
        """Yield the keys to read, int64[n], a chunk at a time."""
        for keys in self._keys:
            for first in keys[:: self.chunk]:
                yield np.arange(first, min(first + self.chunk, keys.stop))

    def arrived(self, keys: NDArray[np.int64], rows: Rows) -> list[Rows]:
        """Take the rows that were read for these keys; return the rows, if any, that are next in the order."""
        self.overtaken += len(keys) - rows.batch_size
        if not rows.batch_size:
            return []
        if self._episodes is None:
            return [rows]
        self._ready += self._episodes.ended_with(rows)
        if sum(each.batch_size for each in self._ready) <= self.chunk:
            return []
        *full, last = self._chunks()
        self._ready = [last]
        return full

    def rest(self) -> list[Rows]:
        """Return the rows not returned yet; log how many could not be read. Call this after all rows have arrived."""
        if self.overtaken:
            log.warning(
                "%s of %s rows of table %r were removed before they were read",
                *(f"{self.overtaken:,}", f"{self.total:,}", self.name),
            )
        if self._episodes is not None:
            self._ready += self._episodes.unfinished()
        return self._chunks() if self._ready else []

    def _chunks(self) -> list[Rows]:
        rows = joined_rows(self._ready)
        ends = range(self.chunk, rows.batch_size, self.chunk)
        return [selected_rows(rows, places) for places in np.split(np.arange(rows.batch_size), ends)]


class EpisodePlan(RowPlan):
    """Plans to read all rows, and returns whole episodes: each `Rows` is one."""

    def __init__(
        self, table: TableDescription, *, chunk: int, unfinished: bool, keys: Sequence[range] | None = None
    ) -> None:
        """See `Table.episodes` and `RowPlan`."""
        if table.steps is None:
            raise no_steps(table)
        super().__init__(table, chunk=chunk, keys=keys)
        self._collected = _Episodes()
        self._wants_unfinished = unfinished

    def arrived(self, keys: NDArray[np.int64], rows: Rows) -> list[Rows]:
        """Take the rows that were read for these keys; return the episodes that end with them."""
        return [each for part in super().arrived(keys, rows) for each in self._wanted(self._collected.ended_with(part))]

    def rest(self) -> list[Rows]:
        """Return the episodes that have not ended, if these are wanted; see `RowPlan.rest`."""
        super().rest()
        return self._wanted(self._collected.unfinished())

    def _wanted(self, episodes: list[Rows]) -> list[Rows]:
        return [each for each in episodes if self._wants_unfinished or is_ended(each)]


def is_ended(rows: Rows) -> bool:
    """Whether the last of these rows of a table of steps closes its episode."""
    return rows.ends is not None and bool(rows.ends[-1])


def no_steps(table: TableDescription) -> InvalidArgumentError:
    """Return the error for a request for episodes of a table without steps."""
    expected = "a table of steps, because other tables have no episodes"
    return InvalidArgumentError.of_field("table", expected, f"{table.name!r}, without steps")


class _Episodes:
    """Collects the rows of episodes, which arrive in order of their keys."""

    def __init__(self) -> None:
        self._begun: dict[int, list[Rows]] = {}  # by stream

    def ended_with(self, rows: Rows) -> list[Rows]:
        """Take rows, and return the episodes that they end, in the order of their last rows.

        An abandoned episode ends where the next one of its stream begins.
        """
        ended = []
        for places in episode_places(rows):
            part = selected_rows(rows, places)
            stream = int(part.streams[0])
            if stream in self._begun and self._begun[stream][0].episodes[0] != part.episodes[0]:
                ended.append(joined_rows(self._begun.pop(stream)))
            self._begun.setdefault(stream, []).append(part)
            if is_ended(part):
                ended.append(joined_rows(self._begun.pop(stream)))
        return sorted(ended, key=_last_key)

    def unfinished(self) -> list[Rows]:
        """Return the episodes that have not ended, in the order of their last rows."""
        return sorted(map(joined_rows, self._begun.values()), key=_last_key)


def _last_key(rows: Rows) -> int:
    return int(rows.row_keys[-1])


class RowReaderBase:
    """What the readers of all clients have in common."""

    def __init__(self, plan: RowPlan) -> None:
        self._plan = plan
        self._one_caller = OneCaller("reader")
        self._parts = plan.parts()
        self._keys = next(self._parts, None)  # of the next rows to read; None: all were read
        self._read_count = 0  # keys whose rows were read
        self._ready: deque[Rows] = deque()
        self._is_complete = False

    @property
    def inserted(self) -> int:
        """Rows inserted into the table before the reader was created. Rows inserted later are not read."""
        return self._plan.inserted

    @property
    def total(self) -> int:
        """Live rows when the reader was created. The reader returns them, except those counted in `overtaken`."""
        return self._plan.total

    @property
    def overtaken(self) -> int:
        """Number of rows that were evicted or reset before they could be read, so far."""
        return self._plan.overtaken

    def _arrived(self, keys: NDArray[np.int64], rows: Rows) -> None:
        """Take the rows that were read for the next keys."""
        self._ready += self._plan.arrived(keys, rows)
        self._keys = next(self._parts, None)
        self._read_count += len(keys)

    def _finish(self) -> bool:
        """Take the rest once all rows were read; return False if that was done before."""
        if self._is_complete:
            return False
        self._is_complete = True
        self._ready += self._plan.rest()
        return True
