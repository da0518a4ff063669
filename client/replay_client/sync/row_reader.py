"""Reads all rows of a table, for export, statistics or offline training.

    reader = table.rows(order="episode", progress=True)
    for rows in reader:                     # `Rows`, up to 10,000 at a time
        save(rows["obs"], rows.episodes, rows.steps)
    print(reader.overtaken, "rows were removed before they were read")

Rows that are inserted after the call of `Table.rows` are not read.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from replay_client._extras import check_extra
from replay_client._learning.answers import joined_rows, selected_rows
from replay_client._learning.one_caller import OneCaller
from replay_client.batch import Rows
from replay_client.draws import checked_count
from replay_client.errors import InvalidArgumentError
from replay_client.results.description import TableDescription
from replay_client.sync.progress import Advance, progress_bar

log = logging.getLogger(__name__)

RowOrder = Literal["key", "episode"]
"""Order in which `Table.rows` returns rows."""


class RowPlan:
    """Plans which rows `Table.rows` reads, and in which order it returns them; does no I/O itself.

    for keys in plan.parts():
        yield from plan.arrived(keys, read(keys))
    yield from plan.rest()
    """

    def __init__(
        self, table: TableDescription, *, chunk: int, order: RowOrder, keys: Sequence[range] | None = None
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
        self._is_by_episode = order == "episode"
        self._unfinished: dict[int, list[Rows]] = {}
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
        if not self._is_by_episode:
            return [rows]
        for run in _runs(rows):
            stream = int(run.streams[0])
            self._unfinished.setdefault(stream, []).append(run)
            if run.ends is not None and run.ends[-1]:
                self._ready += self._unfinished.pop(stream)
        if sum(each.batch_size for each in self._ready) <= self.chunk:
            return []
        *full, last = self._chunks(self._ready)
        self._ready = [last]
        return full

    def rest(self) -> list[Rows]:
        """Return the rows not returned yet; log how many could not be read. Call this after all rows have arrived."""
        if self.overtaken:
            log.warning(
                "%s of %s rows of table %r were removed before they were read",
                *(f"{self.overtaken:,}", f"{self.total:,}", self.name),
            )
        for held in self._unfinished.values():
            self._ready += held
        return self._chunks(self._ready) if self._ready else []

    def _chunks(self, parts: list[Rows]) -> list[Rows]:
        rows = joined_rows(parts)
        ends = range(self.chunk, rows.batch_size, self.chunk)
        return [selected_rows(rows, places) for places in np.split(np.arange(rows.batch_size), ends)]


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


class RowReader(RowReaderBase):
    """An iterator over the rows that were live when it was created. For use in one thread."""

    def __init__(
        self,
        read: Callable[[NDArray[np.int64]], Rows],
        table: TableDescription,
        *,
        chunk: int,
        order: RowOrder,
        progress: bool,
        keys: Sequence[range] | None = None,
    ) -> None:
        """Created by `Table.rows`; ``read`` returns the live rows among those with the given keys."""
        super().__init__(RowPlan(table, chunk=chunk, order=order, keys=keys))
        if progress:
            check_extra("cli", "rich")
        self._read = read
        self._shows_progress = progress
        self._advance: Advance | None = None  # while a bar is shown
        self._bar = ExitStack()
        weakref.finalize(self, self._bar.close)

    def __iter__(self) -> RowReader:
        return self

    def __next__(self) -> Rows:
        """Return the next rows. After an error, the next call continues.

        Raises:
            TableReplacedError: the table was dropped, and another one has its name.
            ConcurrentUseError: another thread is in this call.
            ReplayError: a call failed.
        """
        with self._one_caller:
            try:
                while not self._ready:
                    if self._keys is not None:
                        self._arrived(self._keys, self._read(self._keys))
                    elif not self._finish():
                        raise StopIteration
            except BaseException:
                self._hide_progress()
                raise
            return self._ready.popleft()

    def _arrived(self, keys: NDArray[np.int64], rows: Rows) -> None:
        super()._arrived(keys, rows)
        if self._advance is not None:
            self._advance(len(keys))
        elif self._shows_progress:
            self._advance = self._bar.enter_context(progress_bar(self._plan.name, self.total))
            self._advance(self._read_count)

    def _finish(self) -> bool:
        self._hide_progress()
        return super()._finish()

    def _hide_progress(self) -> None:
        self._bar.close()
        self._advance = None


def _runs(rows: Rows) -> Iterator[Rows]:
    """Split rows by episode, each in step order. The given rows are in order of their keys."""
    order = np.argsort(rows.streams, kind="stable")
    streams, episodes = rows.streams[order], rows.episodes[order]
    ends = (streams[1:] != streams[:-1]) | (episodes[1:] != episodes[:-1])
    for places in np.split(order, np.flatnonzero(ends) + 1):
        yield selected_rows(rows, places)
