"""One table of a server: insert rows, draw batches, update priorities.

    table = client.table("cartpole")
    keys = table.insert({"obs": obs, "action": action, ...})
    batch = table.sample(256, beta=0.4)
    result = table.update_priorities(batch, td_errors)

Each of these calls is a round trip to the server; `writer` and `sampler` instead stream in the background. Any
call may raise `ReplayError`; methods list only more specific errors, except those of a dropped table: calls to it raise
`TableNotFoundError`, or, once another one has its name, `TableReplacedError`. `ReplayClient.table` opens the new one.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_proto.frames import Content
from replay_proto.framing import Array
from replay_proto.v1 import replay_pb2

from replay_client._extras import check_extra
from replay_client._learning.handle import check_device
from replay_client._operations.reading import CHUNK_ROWS, EpisodePlan, RowOrder, RowPlan
from replay_client._operations.server import describe, drop_table, inspect_table, reset_table, stats
from replay_client._operations.table import TableHandle
from replay_client._rows.buffers import Blank
from replay_client._rows.columns import BatchOrKeys, chosen_columns
from replay_client._transport.call import Call, Operation, limited, rest_of, run, time_limit
from replay_client._transport.connection import Connection
from replay_client._transport.data_path import DataPath
from replay_client._transport.local_calls import is_local
from replay_client._transport.long_waits import LongWait
from replay_client._transport.request_ids import RequestId
from replay_client._transport.session import Session
from replay_client._writing.writing import WriterOptions
from replay_client.batch import Batch, Rows, UpdateResult
from replay_client.draws import DEFAULT_BETA, DrawMode, Prefetch, SamplerOptions, WeightNorm
from replay_client.results.copies import Exported, Loaded
from replay_client.results.description import TableDescription
from replay_client.results.inspection import Inspection
from replay_client.results.stats import TableStats
from replay_client.sync.row_loader import Insert, RowLoader
from replay_client.sync.row_reader import RowReader
from replay_client.sync.sampler import Sampler
from replay_client.sync.writer import Writer

if TYPE_CHECKING:
    import pyarrow

    from replay_client._learning.tensors import Device
    from replay_client.sync.tensors import TensorSampler

T = TypeVar("T")


class Table(TableHandle):
    """See the module. Thread-safe."""

    def __init__(
        self,
        session: Session,
        description: TableDescription,
        *,
        created: bool = False,
        data_path: DataPath | None = None,
    ) -> None:
        """Created by `ReplayClient`. ``data_path`` has the shortcuts to use; None: those that the session prepares."""
        path = data_path or session.data_path(description, partial(describe, description.name))
        super().__init__(description, session.options, path.near, created=created)
        self._session = session
        self._data_path = path

    def size(self) -> int:
        """Return the number of live rows; a cheap call."""
        return self._run(self._operations.describe()).size

    def __len__(self) -> int:
        """Number of live rows, like `size`."""
        return self.size()

    def __bool__(self) -> bool:
        return True  # even if the table is empty

    def __reduce__(self) -> tuple[Callable[..., Table], tuple[object, ...]]:
        return partial(Table, created=self.created), (self._session, self._description)

    def insert(
        self, rows: Mapping[str, Any], *, priorities: ArrayLike | None = None, timeout_s: float | None = None
    ) -> NDArray[np.int64]:
        """Insert rows exactly once, even if the server goes away during the call. Not for tables of steps.

        Large inserts, for instance of more than 4 MiB, are split into several requests, each of which is atomic. If one
        fails, those before it have inserted their rows, and a note on the error says how many. Inserts from several
        threads do not wait for each other.

        Args:
            rows: values by column, ``[n, *shape]``; nested observations are mappings or tuples. Optional columns may be
                missing; to give them for some of the rows only, also give their masks.
            priorities: absolute TD errors float64[n]; None: the largest live priority.
            timeout_s: seconds that each request waits for the rate limiter, for room in a queue, or for an
                unreachable server. None: the client's default; `math.inf`: forever; 0: do not wait for the limiter
                or the queue, but wait for an unreachable server up to the default.

        Returns:
            Keys of the rows, int64[n].

        Raises:
            InvalidArgumentError: the rows do not match the table, or the time limit is invalid.
            LimitedError: the rate limiter or a full queue does not allow the insert, and `timeout_s` is 0.
            ResourceExhaustedError: a limit was exceeded, or the server's disk is full.
            DeadlineExceededError: a request timed out. If ``metadata`` has ``waited_for``, the rate limiter or queue
                did not allow it in time, and none of its rows was inserted. Otherwise, its rows may have been inserted.
            TableResetError: the table was reset during the wait; none of the request's rows was inserted.
            ServerUnavailableError: the server was unreachable; the request's rows may have been inserted.
        """
        self._connection.check_usable()
        return self._run(self._operations.insert(rows, priorities=priorities, timeout_s=timeout_s))

    def sample(
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
        """Draw rows by priority, with replacement. From a queue, remove and return the oldest rows.

        Args:
            batch_size: number of rows, at least 1; may exceed the table's size.
            beta: exponent of the importance-sampling weights, at least 0: 0 for no correction, 1 for full correction.
                Weights of ``uniform`` and ``fifo`` are always 1.
            weight_norm: divisor of the weights: the largest weight in the ``"batch"``, or in the ``"table"``.
            draw_mode: ``"stratified"``: one draw from each of `batch_size` equal segments of the mass.
                ``"independent"``: independent draws. ``"without_replacement"``: different rows, each drawn in
                proportion to the mass of the rows that are not in the batch yet. The draw waits for as many rows.
                ``"newest_first"``: stratified, but each row that was inserted since the first such draw takes a first
                place of one batch, the newest first (DreamerV3's online queue); of `Sequences`, only those that begin
                at a multiple of their length, which is rounded up to a multiple of `period`; not by rank. With these
                two, `Batch.probabilities` and the weights are those of a single draw by priority, and the table must
                be on one server.
            timeout_s: seconds to wait while the table is empty, or its rate limiter or queue does not allow the
                draw. 0: do not wait; None: the client's default; `math.inf`: forever.
            columns: names of the columns to return, or of nested observations; None: all. Other columns are neither
                sent nor copied. A `Mask` is always returned.
            row_info: whether to return `Batch.row_info`: how often each row was drawn before, and its age.

        Raises:
            InvalidArgumentError: for a number out of range, or an unknown name.
            TableEmptyError: the table is empty, and `timeout_s` is 0.
            LimitedError: the draw is not allowed now, and `timeout_s` is 0.
            DeadlineExceededError: the wait exceeded `timeout_s`.
            TableResetError: the table was reset during the wait.
        """
        reader = self._operations.batch_reader(self._operations.chosen(columns))
        draw = self._operations.draw(batch_size, beta, weight_norm, draw_mode, timeout_s, reader, row_info)
        return self._run_near(self._operations.sample(draw, reader), draw.wait_s)

    def update_priorities(self, batch_or_keys: BatchOrKeys, priorities: ArrayLike) -> UpdateResult:
        """Update priorities. More than 8192 keys are split into several calls, each of which is atomic.

        Args:
            batch_or_keys: a batch, or keys int64[n]. For duplicate keys, the last priority counts.
            priorities: finite absolute TD errors float64[n], as an array or a tensor. If a device is still computing
                the tensor, the call waits. With a batch of sequences, also TD errors of steps: of the first n positions
                from the anchor on, ``[batch, n]``, or of all, ``[batch, burn_in + length]``. Those of each sequence are
                combined as by `sequence_priorities`, with the table's `Sequences.eta`.

        Returns:
            Number of distinct rows updated, and of stale keys. If the update is split, a row counts once per call.

        Raises:
            InvalidArgumentError: the keys or the priorities are invalid.
        """
        return self._run(self._operations.update_priorities(batch_or_keys, priorities))

    def update(self, keys: ArrayLike, columns: Mapping[str, Any]) -> UpdateResult:
        """Write new values into mutable columns of rows that exist.

        Atomic for each row: a reader gets the old values of the row or the new ones, in all of its columns, and so does
        a server that is killed meanwhile. More than 8192 rows or 4 MiB are split into several calls.

        Args:
            keys: int64 of any shape, such as `Batch.position_keys`; -1 for a position without a row. For duplicate
                keys, the last values count.
            columns: new values by column, ``[*keys.shape, *shape]``; observations may be nested. All columns must be
                declared with ``Column(..., mutable=True)``. An optional column gets a value, so its mask becomes True;
                set the mask to False to remove it.

        Returns:
            Number of distinct rows updated, and of stale keys. If the update is split, a row counts once per call.

        Raises:
            InvalidArgumentError: a column is unknown, derived or not mutable, or a dtype or shape is wrong. The error
                names the column, and nothing has changed.
        """
        return self._run(self._operations.update(keys, columns))

    def read(self, batch_or_keys: BatchOrKeys, *, columns: Collection[str] | None = None) -> Rows:
        """Read live rows by key.

        More than 8192 rows or 32 MiB are read in several calls. Between these calls, rows may be evicted and priorities
        may change.

        Args:
            batch_or_keys: a batch, or keys int64[n].
            columns: names of stored columns to read, or of nested observations; None: all.

        Returns:
            The live rows in the requested order; `Rows.row_keys` has their keys.

        Raises:
            InvalidArgumentError: the keys are not int64[n], or a name is unknown.
        """
        return self._run_near(self._operations.read(batch_or_keys, columns=columns))

    def rows(
        self,
        *,
        chunk: int = CHUNK_ROWS,
        order: RowOrder = "key",
        progress: bool = False,
        columns: Collection[str] | None = None,
    ) -> RowReader:
        """Read all rows that are live now, in chunks: ``for rows in table.rows(): ...``.

        Rows inserted after this call are not read. Rows that are evicted or removed before they are read are counted in
        `RowReader.overtaken`, and a warning is logged at the end. Priorities are those at the time of reading.

        Args:
            chunk: maximum rows per `Rows`.
            order: ``"key"``: in order of insertion. ``"episode"``, for tables of steps: all rows of an episode together
                and in step order; episodes that end earlier tend to come first, and an episode may continue in the next
                chunk. Rows of episodes that overlap in time are held in memory.
            progress: show a bar on standard error (needs the extra ``cli``).
            columns: names of stored columns to read, or of nested observations; None: all.

        Raises:
            InvalidArgumentError: for a number out of range, an unknown name or order, or ``"episode"`` for a table
                without steps.
            MissingExtraError: the extra ``cli`` is not installed.
        """
        read = partial(self.read, columns=chosen_columns(self.schema, columns, self.schema.masks))
        return RowReader(read, RowPlan(self._checked_description(), chunk=chunk, order=order), progress=progress)

    def episode(self, key: int, *, columns: Collection[str] | None = None) -> Rows:
        """Read the whole episode of a row of a table of steps, for example of one drawn: ``batch.row_keys[0]``.

        The rows are in step order. If the episode has ended, `Rows.ends` of the last one says how. Rows that are not
        live any more are missing, so `Rows.steps` may begin above 0. If the row itself is not live, there are no rows.
        ``columns`` is as for `rows`.

        This takes a few round trips. If many streams are written at once, it takes more, because the rows of an episode
        lie farther apart.

        Raises:
            InvalidArgumentError: the table is not a table of steps, or a name is unknown.
        """
        return self._run_near(self._operations.episode(key, columns=columns))

    def episodes(
        self,
        *,
        unfinished: bool = True,
        chunk: int = CHUNK_ROWS,
        progress: bool = False,
        columns: Collection[str] | None = None,
    ) -> RowReader:
        """Read all episodes of a table of steps: ``for rows in table.episodes(): ...``.

        Each `Rows` is one episode, in step order. Episodes come in the order in which they ended, and then those that
        have not ended. Otherwise this is like `rows`: rows that are inserted after this call are not read, and rows
        that are no longer live are missing, so the oldest episodes may lack their first steps (`Rows.steps`).

        Args:
            unfinished: whether to return episodes that have not ended, among them abandoned ones.
            chunk: rows to read at once.
            progress: as for `rows`.
            columns: as for `rows`.

        Raises:
            InvalidArgumentError: the table is not a table of steps, `chunk` is out of range, or a name is unknown.
            MissingExtraError: the extra ``cli`` is not installed.
        """
        read = partial(self.read, columns=chosen_columns(self.schema, columns, self.schema.masks))
        plan = EpisodePlan(self._checked_description(), chunk=chunk, unfinished=unfinished)
        return RowReader(read, plan, progress=progress)

    def to_arrow(
        self, *, order: RowOrder = "key", progress: bool = False, columns: Collection[str] | None = None
    ) -> pyarrow.Table:
        """Read all rows that are live now into an Arrow table (needs the extra ``arrow``).

        Arguments are as for `rows`; keys, priorities and places in episodes are always there.
        `replay_client.sync.arrow` describes the columns.

        Raises:
            MissingExtraError: the extra ``arrow`` is not installed.
            ReplayError: as for `rows`.
        """
        check_extra("arrow", "pyarrow")
        from replay_client.sync import arrow  # pyarrow is optional

        return arrow.table_of(*self._rows_for_arrow(order, progress, columns))

    def to_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        order: RowOrder = "key",
        progress: bool = False,
        columns: Collection[str] | None = None,
    ) -> Exported:
        """Write all rows that are live now to a Parquet file (needs the extra ``arrow``).

        The table remains in use during the export. Rows inserted after this call are not written, and rows that are
        evicted before they are read are counted. An existing file is replaced once all rows are written.
        `replay_client.sync.arrow` describes the columns of the file. Only a file with all columns can be loaded again.
        Arguments after the path are as for `to_arrow`.

        Returns:
            How many rows were written, and how many were evicted before they were read.

        Raises:
            MissingExtraError: the extra ``arrow`` is not installed.
            OSError: the file cannot be written.
            ReplayError: as for `rows`.
        """
        check_extra("arrow", "pyarrow")
        from replay_client.sync import arrow  # pyarrow is optional

        return arrow.write_parquet(*self._rows_for_arrow(order, progress, columns), path)

    def _rows_for_arrow(
        self, order: RowOrder, progress: bool, columns: Collection[str] | None
    ) -> tuple[RowReader, pyarrow.Schema]:
        from replay_client.sync import arrow  # pyarrow is optional

        table = self._checked_description()
        schema = arrow.schema_of(table, chosen_columns(self.schema, columns, self.schema.masks))
        return self.rows(chunk=arrow.rows_at_once(table), order=order, progress=progress, columns=columns), schema

    def load_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        priorities: bool = True,
        keys: bool = False,
        timeout_s: float | None = None,
        progress: bool = False,
    ) -> Loaded:
        """Insert the rows of a Parquet file exactly once (needs the extra ``arrow``).

        The file is read twice: all rows are checked before the first one is inserted. In a table of steps, rows keep
        their episodes and steps, so the same windows can be drawn as from the exported table. Files that other programs
        wrote need the table's columns, with dtypes and shapes as for `insert`.

        Args:
            path: the file.
            priorities: whether rows get the priorities in the file; otherwise, the largest live one. See `loader`.
            keys: whether rows must get the keys in the file. A table numbers its rows from 0 without gaps, so the keys
                in the file must continue those of the table, and nothing else may insert rows during this call. The
                first condition is checked before any row is inserted, the second after all rows are.
            timeout_s: seconds that each request waits, as for `insert`.
            progress: show a bar on standard error (needs the extra ``cli``).

        Returns:
            How many rows were inserted, and the key of the first one.

        Raises:
            InvalidArgumentError: the file is not a Parquet file, or its columns differ from the table's, or an option
                is not possible. Nothing was inserted.
            FileNotFoundError: there is no such file.
            MissingExtraError: an extra is not installed.
            ReplayError: as for `insert`. A note on the error says how many rows were inserted.
        """
        check_extra("arrow", "pyarrow")
        if progress:
            check_extra("cli", "rich")
        from replay_client.sync import arrow  # pyarrow is optional

        loader = self.loader(priorities=priorities, timeout_s=timeout_s)
        rows, table = arrow.ParquetRows(path), self._checked_description()
        rows.check(table, priorities=priorities, keys=keys)
        return rows.load(table, loader, priorities=priorities, keys=keys, progress=progress)

    def loader(self, *, priorities: bool = True, timeout_s: float | None = None) -> RowLoader:
        """Create a loader, which inserts rows that were read from this or another table.

        Args:
            priorities: whether rows keep their priorities; otherwise, they get the largest live one. In a table of
                steps, rows whose priority is unknown get the largest known one.
            timeout_s: seconds that each request waits, as for `insert`.

        Raises:
            InvalidArgumentError: the time limit is invalid.
        """
        wait_s = time_limit("timeout_s", timeout_s, self._connection.timeout_s)
        return RowLoader(self._description, partial(self._insert_checked, wait_s=wait_s), priorities=priorities)

    def _insert_checked(
        self,
        columns: Mapping[str, Array],
        priorities: NDArray[np.float64] | None,
        runs: replay_pb2.Runs,
        *,
        wait_s: float = 0.0,
        insert_id: RequestId | None = None,
    ) -> NDArray[np.int64]:
        """Insert checked rows in one request, and return their keys; internal. Users call `loader`."""
        self._connection.check_usable()
        return self._run(self._operations.insert_part(columns, priorities, runs, wait_s, insert_id))

    def _copy_loader(self, insert_into: Callable[[Table], Insert]) -> RowLoader:
        """Create a loader whose rows keep the numbers of their streams; internal, for `replay_client.sync.copying`.

        Args:
            insert_into: returns what inserts rows into a table; called for each shard.
        """
        return RowLoader(self._description, insert_into(self), priorities=True, keep_streams=True)

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
        """Create a writer for actors, which sends rows in the background.

        Args:
            streams: number of streams of experience, one for each environment; ``writer[i]`` is one of them. They share
                a connection.
            block_rows: rows per block, which is one message. None: up to 1024 rows or 1 MiB, but at least one row of
                each stream. In a queue, or with `samples_per_insert`, None is up to 64 rows.
            max_blocks_in_flight: number of unacknowledged blocks, 1 to 16, at which `append` waits. None: 16. In a
                queue, or with `samples_per_insert`, None is 2: rows that wait for draws are steps of an old policy, so
                the actor should not be far ahead.
            min_delay_s: seconds after its first row at which the writer sends an incomplete block. With more seconds,
                it sends fewer messages. With more than 0.1 s, it does not send blocks at the end of episodes either.
            max_delay_s: maximum seconds that a row waits in an incomplete block. A server with many writers asks them
                to wait for longer than `min_delay_s`.
            reconnect_timeout_s: seconds to retry an unreachable server. None: the client's default; 0: do not retry;
                `math.inf`: forever.

        Raises:
            InvalidArgumentError: for a number out of range.
            ClosedError: the client is closed.
        """
        return self._writer_with(
            WriterOptions(
                streams=streams,
                block_rows=block_rows,
                max_blocks_in_flight=max_blocks_in_flight,
                min_delay_s=min_delay_s,
                max_delay_s=max_delay_s,
                reconnect_timeout_s=reconnect_timeout_s,
            )
        )

    def _writer_with(self, options: WriterOptions) -> Writer:
        """Create a writer with these options; internal. Users call `writer`."""
        self._connection.reach()
        return Writer(
            self._connection,
            self._description,
            options,
            path=self._data_path,
        )

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
        """Create a sampler for learners, which prefetches batches and sends updates on the same stream.

        Args:
            batch_size: rows in a batch, at least 1.
            beta: exponent of the weights, as for `sample`; can be changed later.
            weight_norm: as for `sample`.
            draw_mode: as for `sample`.
            prefetch: number of batches in flight; 1: no prefetching. A draw misses the last ``prefetch - 1`` updates.
                "auto": the smallest number, from 2 to 16, that keeps the learner from waiting; always 2 if the table
                has a rate limiter or is a queue. Choose a number for reproducible runs.
            timeout_s: seconds to wait for a batch while the table is empty, or its rate limiter or queue does not
                allow the draw; after 10 s, the log says what is missing. 0: do not wait; None: the client's default;
                `math.inf`: forever, or as long as the server's ``--max-wait-s`` allows. Prefetched batches
                count as drawn for the limiter.
            reconnect_timeout_s: seconds to retry an unreachable server, as for `writer`.
            columns: names of the columns to draw, as for `sample`.
            row_info: as for `sample`.
            device: prefetch batches as tensors on this device (needs torch); a draw then misses the last
                ``prefetch`` updates. None: batches are NumPy arrays.

        Raises:
            InvalidArgumentError: for a number out of range, or an unknown name or device.
            MissingExtraError: there is a `device`, but torch is not installed.
            ClosedError: the client is closed.
        """
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
        from replay_client.sync.tensors import TensorSampler  # torch is optional

        return TensorSampler(sampler, device)

    def _part_sampler(
        self,
        names: tuple[str, ...] | None,
        *,
        blank: Blank | None,
        kind: Callable[..., Sampler] = Sampler,
        read_only: bool = False,
        prefetch: Prefetch,
        reconnect_timeout_s: float | None,
        **draw: Any,
    ) -> Sampler:
        """Create a sampler, for use alone or for this table's part of mixed batches; internal. Users call `sampler`.

        Args:
            names: columns of its batches; None: all.
            blank: provides the memory for its batches; None: the sampler does.
            kind: creates the sampler.
            read_only: see `BatchReader`.
            prefetch: as for `sampler`.
            reconnect_timeout_s: as for `sampler`.
            **draw: the options of `TableOperations.draw`.
        """
        self._connection.reach()
        replacing = self._operations.batch_reader(names)
        reader = replacing if blank is None else self._operations.batch_reader(names, blank, read_only=read_only)
        return kind(
            self._connection,
            self._description,
            self._operations.draw(**draw, reader=reader),
            reader,
            lambda draw: self._run(self._operations.sample_again(draw, replacing)),
            path=self._data_path,
            prefetch=prefetch,
            reconnect_timeout_s=reconnect_timeout_s,
        )

    def describe(self) -> TableDescription:
        """Fetch the current description, including row counts.

        The table is looked up by name; compare `TableDescription.uid` to detect that it was replaced.
        """
        return self._run(describe(self.name))

    def _checked_description(self) -> TableDescription:
        """Fetch the current description, like `describe`, but raise if another table has this name."""
        return self._run(self._operations.describe())

    def stats(self) -> TableStats:
        """Fetch statistics of the table; a cheap call."""
        return self._run(stats(self.name)).tables[self.name]

    def inspect(self, *, largest: int = 10) -> Inspection:
        """Fetch the distributions of the rows' priorities, ages and numbers of draws.

        This takes up to a few tenths of a second, but other calls do not wait for it.

        Args:
            largest: how many of the rows with the largest priorities to fetch, 1 to 100.

        Raises:
            InvalidArgumentError: ``largest`` is out of range.
        """
        return self._run(inspect_table(self.name, self.uid, largest))

    def reset(self) -> int:
        """Remove all rows. Keys of new rows continue the sequence.

        The call is not retried if the server goes away, because a second reset would remove newer rows.

        Returns:
            Number of rows removed.
        """
        return self._run(reset_table(self.name, self.uid))

    def drop(self) -> None:
        """Drop the table."""
        self._run(drop_table(self.name, self.uid))

    @property
    def _connection(self) -> Connection:
        return self._session.connection

    def _run(self, operation: Operation[T]) -> T:
        """Run an operation, using a shortcut if available."""
        return run(operation, self._call)

    def _run_near(self, operation: Operation[T], wait_s: float = 0.0) -> T:
        """Run an operation that copies rows from the server's files if it can; ``wait_s``: its limit, if it has one."""
        self._data_path.renew(wait_s or self._connection.timeout_s)
        return self._run(operation)

    def _home(self) -> tuple[int, Table]:
        """Return 0 and the table itself; internal. Of a table on several servers, the first shard and its id."""
        return 0, self

    def _call(self, call: Call) -> Content:
        path, connection = self._data_path, self._connection
        if path.address is None or not is_local(call.method):
            return connection.call(call)
        connection.check_usable()
        limit_s, margin_s = limited(call, connection.timeout_s)
        deadline = time.monotonic() + limit_s
        path.renew(limit_s)
        with LongWait(f"the call {call.method} to {connection.address}", partial(connection.explain, call)):
            answer = path.call(call.method, call.request, max(0.0, deadline + margin_s - time.monotonic()))
        if answer is None:
            answer = connection.call(rest_of(call, deadline, margin_s))
        return answer
