"""Reads all rows of a table; see `replay_client.sync.row_reader`.

async for rows in await table.rows(order="episode"):
    save(rows["obs"], rows.episodes, rows.steps)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np
from numpy.typing import NDArray

from replay_client._operations.reading import RowPlan, RowReaderBase
from replay_client.batch import Rows


class RowReader(RowReaderBase):
    """An iterator over the rows that were live when it was created. For use in one task at a time."""

    def __init__(self, read: Callable[[NDArray[np.int64]], Awaitable[Rows]], plan: RowPlan) -> None:
        """Created by `Table.rows`; ``read`` returns the live rows among those with the given keys."""
        super().__init__(plan)
        self._read = read

    def __aiter__(self) -> RowReader:
        return self

    async def __anext__(self) -> Rows:
        """Return the next rows; after an error or a cancellation, the next call continues."""
        with self._one_caller.turn():
            while not self._ready:
                if self._keys is not None:
                    self._arrived(self._keys, await self._read(self._keys))
                elif not self._finish():
                    raise StopAsyncIteration
            return self._ready.popleft()
