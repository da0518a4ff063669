"""Reads all rows of a table, for export, statistics or offline training.

    reader = table.rows(order="episode", progress=True)
    for rows in reader:                     # `Rows`, up to 10,000 at a time
        save(rows["obs"], rows.episodes, rows.steps)
    print(reader.overtaken, "rows were removed before they were read")

Rows that are inserted after the call of `Table.rows` are not read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from replay_client._answers import joined_rows, selected_rows
from replay_client._extras import check_extra
from replay_client.batch import Rows
from replay_client.draws import checked_count
from replay_client.errors import InvalidArgumentError
from replay_client.results.description import TableDescription

log = logging.getLogger(__name__)

RowOrder = Literal["key", "episode"]
"""Order in which `Table.rows` returns rows."""
Advance = Callable[[int], object]
"""Advances a progress bar by a number of rows."""


class RowReader:
    """An iterator over the rows that were live when it was created. For use in one thread."""

    def __init__(
        self,
        read: Callable[[NDArray[np.int64]], Rows],
        table: TableDescription,
        *,
        chunk: int,
        order: RowOrder,
        progress: bool,
    ) -> None:
        """Created by `Table.rows`; ``read`` returns the live rows among those with the given keys."""
        if order not in get_args(RowOrder):
            raise InvalidArgumentError.of_field("order", "'key' or 'episode'", repr(order))
        if order == "episode" and table.steps is None:
            raise InvalidArgumentError.of_field("order", "'key' for a table without steps", repr(order))
        if progress:
            check_extra("cli", "rich")
        self.inserted: Final = table.inserted
        """Rows ever inserted into the table when the reader was created. Rows inserted later are not read."""
        self.total: Final = table.size
        """Number of live rows at that time. The reader returns all of them, except those counted in `overtaken`."""
        self.overtaken = 0
        """Number of rows that were evicted or reset before they could be read, so far."""
        self._read = read
        self._name = table.name
        self._chunk = checked_count("chunk", chunk)
        by_key = self._by_key(progress_bar(table.name, self.total) if progress else nullcontext(lambda _: None))
        self._rows = self._by_episode(by_key) if order == "episode" else by_key

    def __iter__(self) -> RowReader:
        return self

    def __next__(self) -> Rows:
        """Return the next rows.

        Raises:
            TableReplacedError: the table was dropped, and another one has its name.
            ReplayError: a call failed.
        """
        return next(self._rows)

    def _by_key(self, bar: AbstractContextManager[Advance]) -> Iterator[Rows]:
        with bar as advance:
            for first in range(self.inserted - self.total, self.inserted, self._chunk):
                keys = np.arange(first, min(first + self._chunk, self.inserted))
                rows = self._read(keys)
                self.overtaken += len(keys) - rows.batch_size
                advance(len(keys))
                if rows.batch_size:
                    yield rows
        if self.overtaken:
            log.warning(
                "%s of %s rows of table %r were removed before they were read",
                *(f"{self.overtaken:,}", f"{self.total:,}", self._name),
            )

    def _by_episode(self, parts: Iterator[Rows]) -> Iterator[Rows]:
        """Yield the rows of each episode once all of them have been read. Until then, they stay in memory."""
        unfinished: dict[int, list[Rows]] = {}
        ready: list[Rows] = []
        for part in parts:
            for run in _runs(part):
                stream = int(run.streams[0])
                unfinished.setdefault(stream, []).append(run)
                if run.ends is not None and run.ends[-1]:
                    ready += unfinished.pop(stream)
            if sum(rows.batch_size for rows in ready) > self._chunk:
                *full, last = self._chunks(ready)
                yield from full
                ready = [last]
        for held in unfinished.values():
            ready += held
        if ready:
            yield from self._chunks(ready)

    def _chunks(self, parts: list[Rows]) -> list[Rows]:
        rows = joined_rows(parts)
        ends = range(self._chunk, rows.batch_size, self._chunk)
        return [selected_rows(rows, places) for places in np.split(np.arange(rows.batch_size), ends)]


def _runs(rows: Rows) -> Iterator[Rows]:
    """Split rows, which are in order of their keys, by episode; the rows of each episode are in step order."""
    order = np.argsort(rows.streams, kind="stable")
    streams, episodes = rows.streams[order], rows.episodes[order]
    ends = (streams[1:] != streams[:-1]) | (episodes[1:] != episodes[:-1])
    for places in np.split(order, np.flatnonzero(ends) + 1):
        yield selected_rows(rows, places)


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Advance]:
    """Show a progress bar on standard error (needs the extra ``cli``); yields a function that advances it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("[bold]{task.description}")
    console = Console(stderr=True)
    with Progress(text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)
