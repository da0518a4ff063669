"""One table of a server: insert rows, draw batches, update priorities; see `replay_client.sync.table`.

table = await client.table("cartpole")
keys = await table.insert({"obs": obs, "action": action, ...})
batch = await table.sample(256, beta=0.4)
result = await table.update_priorities(batch, td_errors)
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from replay_client._learning.handle import check_device
from replay_client._operations.reading import CHUNK_ROWS, EpisodePlan, RowOrder, RowPlan
from replay_client._operations.server import describe, drop_table, inspect_table, reset_table, stats
from replay_client._operations.table import TableHandle
from replay_client._rows.buffers import Blank
from replay_client._rows.columns import BatchOrKeys, chosen_columns
from replay_client._transport.call import Operation
from replay_client._writing.writing import WriterOptions
from replay_client.aio._connection import Connection
from replay_client.aio._session import LoopSession
from replay_client.aio.row_reader import RowReader
from replay_client.aio.sampler import Sampler
from replay_client.aio.writer import Writer
from replay_client.batch import Batch, Rows, UpdateResult
from replay_client.draws import DEFAULT_BETA, DrawMode, Prefetch, SamplerOptions, WeightNorm
from replay_client.results.copies import Exported, Loaded
from replay_client.results.description import TableDescription
from replay_client.results.inspection import Inspection
from replay_client.results.stats import TableStats
from replay_client.sync.table import Table as SyncTable

if TYPE_CHECKING:
    import pyarrow

    from replay_client._learning.tensors import Device
    from replay_client.aio.tensors import TensorSampler

T = TypeVar("T")


class Table(TableHandle):
    """See `replay_client.Table`."""

    def __init__(self, session: LoopSession, description: TableDescription, *, created: bool = False) -> None:
        """Created by `ReplayClient`."""
        self._path = session.local_path(description, partial(describe, description.name))
        super().__init__(description, session.options, self._path.near, created=created)
        self._session = session

    def __reduce__(self) -> tuple[Callable[..., Table], tuple[object, ...]]:
        return partial(Table, created=self.created), (self._session, self._description)

    async def size(self) -> int:
        """Return the number of live rows; see `replay_client.Table.size`."""
        return (await self._connection.run(self._operations.describe())).size

    async def insert(
        self, rows: Mapping[str, Any], *, priorities: ArrayLike | None = None, timeout_s: float | None = None
    ) -> NDArray[np.int64]:
        """Insert rows exactly once, and return their keys; see `replay_client.Table.insert`.

        A canceled insert may have inserted its rows or, if it was split, only those of its first requests.
        """
        self._connection.check_usable()
        return await self._connection.run(self._operations.insert(rows, priorities=priorities, timeout_s=timeout_s))

    async def sample(
        self,
        batch_size: int,
        *,
        beta: float = DEFAULT_BETA,
        weight_norm: WeightNorm = "batch",
        draw_mode: DrawMode = "stratified",
        timeout_s: float | None = 0.0,
        columns: Collection[str] | None = None,
        row_info: bool = False,
    ) -> Batch:
        """Draw rows by priority; see `replay_client.Table.sample`."""
        reader = self._operations.batch_reader(self._operations.chosen(columns))
        draw = self._operations.draw(batch_size, beta, weight_norm, draw_mode, timeout_s, reader, row_info)
        return await self._run_near(self._operations.sample(draw, reader), draw.wait_s)

    async def update_priorities(self, batch_or_keys: BatchOrKeys, priorities: ArrayLike) -> UpdateResult:
        """Update priorities; see `replay_client.Table.update_priorities`."""
        return await self._connection.run(self._operations.update_priorities(batch_or_keys, priorities))

    async def update(self, keys: ArrayLike, columns: Mapping[str, Any]) -> UpdateResult:
        """Write new values into mutable columns of rows that exist; see `replay_client.Table.update`."""
        return await self._connection.run(self._operations.update(keys, columns))

    async def read(self, batch_or_keys: BatchOrKeys, *, columns: Collection[str] | None = None) -> Rows:
        """Read live rows by key; see `replay_client.Table.read`."""
        return await self._run_near(self._operations.read(batch_or_keys, columns=columns))

    async def rows(
        self, *, chunk: int = CHUNK_ROWS, order: RowOrder = "key", columns: Collection[str] | None = None
    ) -> RowReader:
        """Read all rows that are live now: ``async for rows in await table.rows()``; see `replay_client.Table.rows`."""
        read = partial(self.read, columns=chosen_columns(self.schema, columns, self.schema.masks))
        description = await self._connection.run(self._operations.describe())
        return RowReader(read, RowPlan(description, chunk=chunk, order=order))

    async def episode(self, key: int, *, columns: Collection[str] | None = None) -> Rows:
        """Read the whole episode of a row; see `replay_client.Table.episode`."""
        return await self._run_near(self._operations.episode(key, columns=columns))

    async def episodes(
        self, *, unfinished: bool = True, chunk: int = CHUNK_ROWS, columns: Collection[str] | None = None
    ) -> RowReader:
        """Read all episodes: ``async for rows in await table.episodes()``; see `replay_client.Table.episodes`."""
        read = partial(self.read, columns=chosen_columns(self.schema, columns, self.schema.masks))
        description = await self._connection.run(self._operations.describe())
        return RowReader(read, EpisodePlan(description, chunk=chunk, unfinished=unfinished))

    async def to_arrow(
        self, *, order: RowOrder = "key", progress: bool = False, columns: Collection[str] | None = None
    ) -> pyarrow.Table:
        """Read all rows that are live now into an Arrow table; see `replay_client.Table.to_arrow`."""
        return await self._in_thread(lambda table: table.to_arrow(order=order, progress=progress, columns=columns))

    async def to_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        order: RowOrder = "key",
        progress: bool = False,
        columns: Collection[str] | None = None,
    ) -> Exported:
        """Write all rows that are live now to a Parquet file; see `replay_client.Table.to_parquet`.

        A thread reads and writes the rows. A canceled export leaves an existing file as it was.
        """
        return await self._in_thread(
            lambda table: table.to_parquet(path, order=order, progress=progress, columns=columns)
        )

    async def load_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        priorities: bool = True,
        keys: bool = False,
        timeout_s: float | None = None,
        progress: bool = False,
    ) -> Loaded:
        """Insert the rows of a Parquet file exactly once; see `replay_client.Table.load_parquet`.

        A thread reads the file and inserts the rows. A canceled import may have inserted some of them.
        """
        return await self._in_thread(
            lambda table: table.load_parquet(
                path, priorities=priorities, keys=keys, timeout_s=timeout_s, progress=progress
            )
        )

    def writer(
        self,
        *,
        streams: int = 1,
        block_rows: int | None = None,
        max_blocks_in_flight: int | None = None,
        min_delay_s: float = 0.1,
        max_delay_s: float = 1.0,
        reconnect_timeout_s: float | None = 60.0,
    ) -> Writer:
        """Create a writer for actors, which sends rows in the background; see `replay_client.Table.writer`."""
        options = WriterOptions(
            streams=streams,
            block_rows=block_rows,
            max_blocks_in_flight=max_blocks_in_flight,
            min_delay_s=min_delay_s,
            max_delay_s=max_delay_s,
            reconnect_timeout_s=reconnect_timeout_s,
        )
        return Writer(self._connection, self._description, options, self._path)

    @overload
    def sampler(
        self,
        batch_size: int,
        *,
        device: None = ...,
        **options: Unpack[SamplerOptions],
    ) -> Sampler: ...

    @overload
    def sampler(
        self,
        batch_size: int,
        *,
        device: Device,
        **options: Unpack[SamplerOptions],
    ) -> TensorSampler: ...

    def sampler(
        self,
        batch_size: int,
        *,
        beta: float = DEFAULT_BETA,
        weight_norm: WeightNorm = "batch",
        draw_mode: DrawMode = "stratified",
        prefetch: Prefetch = "auto",
        timeout_s: float | None = math.inf,
        reconnect_timeout_s: float | None = 60.0,
        columns: Collection[str] | None = None,
        row_info: bool = False,
        device: Device | None = None,
    ) -> Sampler | TensorSampler:
        """Create a sampler for learners; see `replay_client.Table.sampler`."""
        check_device(device)
        sampler = self._part_sampler(
            self._operations.chosen(columns),
            blank=None,
            prefetch=prefetch,
            reconnect_timeout_s=reconnect_timeout_s,
            batch_size=batch_size,
            beta=beta,
            weight_norm=weight_norm,
            draw_mode=draw_mode,
            row_info=row_info,
            timeout_s=timeout_s,
        )
        if device is None:
            return sampler
        from replay_client.aio.tensors import TensorSampler  # torch is optional

        return TensorSampler(sampler, device)

    def _part_sampler(
        self,
        names: tuple[str, ...] | None,
        *,
        blank: Blank | None,
        prefetch: Prefetch,
        reconnect_timeout_s: float | None,
        **draw: Any,
    ) -> Sampler:
        """Create a sampler, for use alone or in mixed batches; see `replay_client.Table._part_sampler`."""
        operations = self._operations
        replacing = operations.batch_reader(names)
        reader = replacing if blank is None else operations.batch_reader(names, blank)
        return Sampler(
            self._connection,
            self._description,
            operations.draw(**draw, reader=reader),
            reader,
            lambda draw: self._connection.run(operations.sample_again(draw, replacing)),
            path=self._path,
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
        return await self._connection.run(inspect_table(self.name, self.uid, largest))

    async def reset(self) -> int:
        """Remove all rows, and return their number; see `replay_client.Table.reset`."""
        return await self._connection.run(reset_table(self.name, self.uid))

    async def drop(self) -> None:
        """Drop the table; see `replay_client.Table.drop`."""
        await self._connection.run(drop_table(self.name, self.uid))

    async def _run_near(self, operation: Operation[T], wait_s: float = 0.0) -> T:
        """Run an operation that copies rows from the server's files if it can; ``wait_s``: its limit, if it has one."""
        await self._path.renew(wait_s or self._connection.timeout_s)
        return await self._connection.run(operation)

    @property
    def _connection(self) -> Connection:
        return self._session.connection

    async def _in_thread(self, work: Callable[[SyncTable], T]) -> T:
        """Run blocking work in a thread, on a blocking `SyncTable` of this table."""
        session = self._session.blocking()
        return await self._session.in_thread(session, partial(work, SyncTable(session, self._description)))
