"""Reads all rows of a table, for export, statistics or offline training.

    reader = table.rows(order="episode", progress=True)
    for rows in reader:                     # `Rows`, up to 10,000 at a time
        save(rows["obs"], rows.episodes, rows.steps)
    print(reader.overtaken, "rows were removed before they were read")

Rows that are inserted after the call of `Table.rows` are not read.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from replay_client._extras import check_extra
from replay_client._operations.reading import RowPlan, RowReaderBase
from replay_client.batch import Rows
from replay_client.sync.progress import Advance, progress_bar


class RowReader(RowReaderBase):
    """An iterator over the rows that were live when it was created. For use in one thread."""

    def __init__(self, read: Callable[[NDArray[np.int64]], Rows], plan: RowPlan, *, progress: bool) -> None:
        """Created by `Table.rows`; ``read`` returns the live rows among those with the given keys."""
        super().__init__(plan)
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
        """Return the next rows. After an error, the next call continues; only one thread may be in this call."""
        with self._one_caller.turn():
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
