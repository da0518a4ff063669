"""One table of a server: insert rows, draw batches, update priorities; see `replay_client.sync.table`.

table = await client.table("cartpole")
keys = await table.insert({"obs": obs, "action": action, ...})
batch = await table.sample(256, beta=0.4)
result = await table.update_priorities(batch, td_errors)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from replay_client._operations.server import describe, drop_table, reset_table, stats
from replay_client._operations.table import TableHandle
from replay_client._rows.choosing import chosen_columns
from replay_client._rows.columns import BatchOrKeys
from replay_client._transport.connection import LinkOptions
from replay_client._transport.data_path import DataPath
from replay_client._writing.writing import MAX_BLOCKS_IN_FLIGHT, WriterOptions
from replay_client.aio._connection import Connection
from replay_client.aio._frames import LocalStreams
from replay_client.aio.row_reader import RowReader
from replay_client.aio.sampler import Sampler
from replay_client.aio.writer import Writer
from replay_client.batch import Batch, Rows, UpdateResult
from replay_client.draws import DrawMode, Prefetch, WeightNorm
from replay_client.results.description import TableDescription
from replay_client.results.inspection import Inspection
from replay_client.results.stats import TableStats
from replay_client.sync.row_reader import RowOrder, RowPlan


class Table(TableHandle):
    """See `replay_client.Table`."""

    def __init__(
        self, connection: Connection, options: LinkOptions, description: TableDescription, *, created: bool = False
    ) -> None:
        """Created by `ReplayClient`."""
        path = DataPath.on_same_host(description, connection.authorization) if options.same_host else DataPath()
        super().__init__(description, options, path.rows, created=created)
        self._connection = connection
        self._local = None if path.calls is None else LocalStreams(path.calls.address)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a table of an event loop cannot be pickled or copied; open it there")

    async def size(self) -> int:
        """Return the number of live rows; see `replay_client.Table.size`."""
        return (await self._connection.run(self._operations.describe())).size

    async def insert(
        self, rows: Mapping[str, Any], *, priorities: ArrayLike | None = None, timeout_s: float | None = None
    ) -> NDArray[np.int64]:
        """Insert rows exactly once, and return their keys; see `replay_client.Table.insert`.

        A canceled insert may have inserted its rows, or those of its first requests if it was split.
        """
        self._connection.check_usable()
        return await self._connection.run(self._operations.insert(rows, priorities=priorities, timeout_s=timeout_s))

    async def sample(
        self,
        batch_size: int,
        *,
        beta: float | None = None,
        weight_norm: WeightNorm = "batch",
        draw_mode: DrawMode = "stratified",
        timeout_s: float | None = 0.0,
        columns: Collection[str] | None = None,
    ) -> Batch:
        """Draw rows by priority; see `replay_client.Table.sample`."""
        reader = self._operations.batch_reader(self._operations.chosen(columns))
        draw = self._operations.draw(batch_size, beta, weight_norm, draw_mode, timeout_s, reader)
        return await self._connection.run(self._operations.sample(draw, reader))

    async def update_priorities(self, batch_or_keys: BatchOrKeys, priorities: ArrayLike) -> UpdateResult:
        """Update priorities; see `replay_client.Table.update_priorities`."""
        return await self._connection.run(self._operations.update_priorities(batch_or_keys, priorities))

    async def read(self, batch_or_keys: BatchOrKeys, *, columns: Collection[str] | None = None) -> Rows:
        """Read live rows by key; see `replay_client.Table.read`."""
        return await self._connection.run(self._operations.read(batch_or_keys, columns=columns))

    async def rows(
        self, *, chunk: int = 10_000, order: RowOrder = "key", columns: Collection[str] | None = None
    ) -> RowReader:
        """Read all rows that are live now: ``async for rows in await table.rows()``; see `replay_client.Table.rows`."""
        read = partial(self.read, columns=chosen_columns(self.schema, columns, self.schema.masks))
        description = await self._connection.run(self._operations.describe())
        return RowReader(read, RowPlan(description, chunk=chunk, order=order))

    def writer(
        self,
        *,
        streams: int = 1,
        block_rows: int | None = None,
        max_blocks_in_flight: int = MAX_BLOCKS_IN_FLIGHT,
        max_delay_s: float = 1.0,
        reconnect_timeout_s: float | None = 60.0,
    ) -> Writer:
        """Create a writer for actors, which sends rows in the background; see `replay_client.Table.writer`."""
        options = WriterOptions(
            streams=streams,
            block_rows=block_rows,
            max_blocks_in_flight=max_blocks_in_flight,
            max_delay_s=max_delay_s,
            reconnect_timeout_s=reconnect_timeout_s,
        )
        return Writer(self._connection, self._description, options, self._local)

    def sampler(
        self,
        batch_size: int,
        *,
        beta: float | None = None,
        weight_norm: WeightNorm = "batch",
        draw_mode: DrawMode = "stratified",
        prefetch: Prefetch = "auto",
        timeout_s: float | None = 0.0,
        reconnect_timeout_s: float | None = 60.0,
        columns: Collection[str] | None = None,
    ) -> Sampler:
        """Create a sampler for learners; see `replay_client.Table.sampler`. Its batches are NumPy arrays."""
        reader = self._operations.batch_reader(self._operations.chosen(columns))
        operations = self._operations
        return Sampler(
            self._connection,
            self._description,
            operations.draw(batch_size, beta, weight_norm, draw_mode, timeout_s, reader),
            reader,
            lambda draw: self._connection.run(operations.sample_again(draw, reader)),
            local=self._local,
            prefetch=prefetch,
            reconnect_timeout_s=reconnect_timeout_s,
        )

    async def describe(self) -> TableDescription:
        """Fetch the current description; see `replay_client.Table.describe`."""
        return await self._connection.run(describe(self.name))

    async def stats(self) -> TableStats:
        """Fetch statistics of the table; see `replay_client.Table.stats`."""
        return (await self._connection.run(stats(self.name))).tables[self.name]

    async def inspect(self, *, largest: int = 10) -> Inspection:
        """Fetch the distribution of the rows; see `replay_client.Table.inspect`."""
        return await self._connection.run(self._operations.inspect(largest))

    async def reset(self) -> int:
        """Remove all rows, and return their number; see `replay_client.Table.reset`."""
        return await self._connection.run(reset_table(self.name, self.uid))

    async def drop(self) -> None:
        """Drop the table; see `replay_client.Table.drop`."""
        await self._connection.run(drop_table(self.name, self.uid))
