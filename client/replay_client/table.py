"""One table of a server: insert rows, draw batches, update priorities.

    table = client.table("cartpole")
    keys = table.insert({"obs": obs, "action": action, ...})
    batch = table.sample(256, beta=0.4)
    result = table.update_priorities(batch, td_errors)

Each of these calls is a round trip to the server; `writer` and `sampler` instead stream in the background. If a table
is dropped and created again with the same name, it is a different table: calls raise `TableReplacedError`, and
`ReplayClient.table` opens the new one. Any call may raise `ReplayError`; methods list only more specific errors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_proto.frames import Content
from replay_proto.v1 import replay_pb2

from replay_client._answers import BatchReader, RowsReader, joined_rows
from replay_client._rows.checks import MOST_KEYS_AT_ONCE, checked_keys, checked_priorities, checked_rows
from replay_client._rows.choosing import chosen_columns, chosen_of_steps
from replay_client._rows.columns import BatchOrKeys
from replay_client._transport.connection import Connection
from replay_client._transport.data_path import DataPath
from replay_client._transport.server_link import ServerLink
from replay_client._transport.time_limits import time_limit
from replay_client._writing.inserts import Inserts
from replay_client.batch import Batch, Rows, UpdateResult
from replay_client.draws import DrawMode, WeightNorm, beta_for, draw_of
from replay_client.errors import InvalidArgumentError, ReplayError, TableReplacedError
from replay_client.results.description import TableDescription
from replay_client.results.inspection import Inspection
from replay_client.results.stats import Stats, TableStats
from replay_client.row_reader import RowOrder, RowReader
from replay_client.sampler import Sampler
from replay_client.writer import MAX_BLOCKS_IN_FLIGHT, Writer

if TYPE_CHECKING:
    from replay_client._tensors import Device, TensorSampler

READ_BYTES: Final = 32 << 20
"""Maximum bytes of rows per reply: larger reads are split."""
_ANSWER_MARGIN_S: Final = 2.0
"""Added to the client's time limit, so that the server times out first and reports the cause.
If the server is gone, a call may take this much longer than its time limit."""
_CHOICES_KEPT: Final = 4
"""Choices of columns whose readers, which have reusable memory, are kept."""


class Table:
    """See the module. Thread-safe."""

    def __init__(
        self,
        link: ServerLink,
        description: TableDescription,
        *,
        created: bool = False,
        data_path: DataPath | None = None,
    ) -> None:
        """Created by `ReplayClient`; ``data_path`` replaces the shortcuts that the link finds."""
        self.created: Final = created
        """Whether `ReplayClient.create_table` created the table; False if it already existed."""
        self.name: Final = description.name
        """Name of the table, unique on the server."""
        self.uid: Final = description.uid
        """16 random bytes that distinguish this table from earlier tables with the same name."""
        self.schema: Final = description.schema
        """Stored columns by name, in storage order."""
        self.steps: Final = description.steps
        """What the table draws and derives, if it is a table of steps; None: not a table of steps."""
        self.capacity: Final = description.capacity
        """Maximum number of rows."""
        self.backend: Final = description.backend
        """Name of the backend."""
        self.parameters: Final = description.parameters
        """Parameters of the backend, including defaults."""
        self.slots: Final = description.slots
        """Size of the ring in rows: row k is in slot k % slots."""
        self._link = link
        self._description = description
        self._data_path = data_path or link.data_path(description)
        self._batch_reader = lru_cache(_CHOICES_KEPT)(
            partial(BatchReader, description.schema, description.steps, self._data_path.rows)
        )
        self._rows_reader = lru_cache(_CHOICES_KEPT)(
            partial(RowsReader, description.schema, of_steps=description.steps is not None)
        )
        self._inserts = Inserts(description)

    @property
    def size(self) -> int:
        """Number of live rows; a cheap call.

        Raises:
            TableNotFoundError: the table was dropped.
            TableReplacedError: the table was dropped, and another one has its name.
        """
        return self._described().size

    def __len__(self) -> int:
        """Number of live rows, like `size`."""
        return self.size

    def __bool__(self) -> bool:
        return True  # even if the table is empty

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {column}" for name, column in self.schema.items())
        address = self._link.options.address
        return f"<Table {self.name!r} at {address}: {self.backend}, {self.capacity} rows of {columns}>"

    def __reduce__(self) -> tuple[Callable[..., Table], tuple[object, ...]]:
        return partial(Table, created=self.created), (self._link, self._description)

    def insert(
        self, rows: Mapping[str, Any], *, priorities: ArrayLike | None = None, timeout_s: float | None = None
    ) -> NDArray[np.int64]:
        """Insert rows exactly once, even if the server goes away during the call. Not for tables of steps.

        Large inserts, for instance of more than 4 MiB, are split into several requests, each of which is atomic.
        Inserts from several threads do not wait for each other.

        Args:
            rows: values by column, ``[n, *shape]``; nested observations are mappings or tuples.
            priorities: absolute TD errors float64[n]; None: the largest live priority.
            timeout_s: seconds that each request waits for the rate limiter, for room in a queue, or for an
                unreachable server. None: the client's default; `math.inf`: forever; 0: do not wait for the table,
                and use the default for the server.

        Returns:
            Keys of the rows, int64[n].

        Raises:
            InvalidArgumentError: the rows do not match the table, or the time limit is invalid.
            LimitedError: the rate limiter or a full queue does not allow the insert, and `timeout_s` is 0.
            TableReplacedError: the table was dropped, and another one has its name.
            ResourceExhaustedError: a limit was exceeded, or the server's disk is full.
            DeadlineExceededError: timed out. If ``metadata`` has ``waited_for``, the rate limiter or queue did not
                allow the insert in time, and nothing was inserted. Otherwise, the rows may have been inserted.
            TableResetError: the table was reset during the wait; nothing was inserted.
            ServerUnavailableError: the server was unreachable; the rows may have been inserted.
        """
        self._connection.check_usable()
        if self.steps is not None:
            expected = "a table without steps; use `Table.writer`, because a step belongs to an episode"
            raise InvalidArgumentError.of_field("rows", expected, f"table {self.name!r}, with steps")
        columns, row_count = checked_rows(self.schema, rows)
        checked = None if priorities is None else checked_priorities(priorities, row_count)
        wait_s = time_limit("timeout_s", timeout_s, self._connection.timeout_s)
        timeout_of_call_s, margin_s = self._call_limits(wait_s)
        keys: list[NDArray[np.int64]] = []
        step = self._description.rows_per_insert
        for part in _parts(row_count, step):
            values = {name: array[part] for name, array in columns.items()}
            try:
                given = None if checked is None else checked[part]
                keys += self._inserts.insert(
                    self._connection, values, given, wait_s=wait_s, timeout_s=timeout_of_call_s, margin_s=margin_s
                )
            except ReplayError as error:
                if part.start:
                    error.add_note(f"{part.start} of {row_count} rows were inserted before this error")
                raise
        return np.concatenate(keys)

    def sample(
        self,
        batch_size: int,
        *,
        beta: float | None = None,
        weight_norm: WeightNorm = "batch",
        draw_mode: DrawMode = "stratified",
        timeout_s: float | None = 0.0,
        columns: Collection[str] | None = None,
    ) -> Batch:
        """Draw rows by priority, with replacement. From a queue, remove and return the oldest rows.

        Args:
            batch_size: number of rows, at least 1; may exceed the table's size.
            beta: exponent of the importance-sampling weights, at least 0: 0 for no correction, 1 for full correction.
                Optional for ``uniform`` and ``fifo``, whose weights are always 1.
            weight_norm: divisor of the weights: the largest weight in the batch, or in the table.
            draw_mode: one draw from each of `batch_size` equal segments of the mass, or independent draws.
            timeout_s: seconds to wait while the table is empty, or its rate limiter or queue does not allow the
                draw. 0: do not wait; None: the client's default; `math.inf`: forever.
            columns: names of the columns to return, or of nested observations; None: all. Other columns are neither
                sent nor copied. A `Mask` is always returned.

        Raises:
            InvalidArgumentError: for a number out of range, an unknown name, or a missing `beta`.
            TableEmptyError: the table is empty, and `timeout_s` is 0.
            LimitedError: the draw is not allowed now, and `timeout_s` is 0.
            DeadlineExceededError: the wait exceeded `timeout_s`.
            TableResetError: the table was reset during the wait.
            TableReplacedError: the table was dropped, and another one has its name.
        """
        reader = self._batch_reader(self._chosen(columns))
        draw = self._draw(batch_size, beta, weight_norm, draw_mode, timeout_s, reader)
        batch = self._drawn(draw, None if reader.mapped is None else reader.mapped.request, reader)
        return batch or self._drawn_over_wire(reader, draw)

    def update_priorities(self, batch_or_keys: BatchOrKeys, priorities: ArrayLike) -> UpdateResult:
        """Update priorities. More than 8192 keys are split into several calls, each of which is atomic.

        Args:
            batch_or_keys: a batch, or keys int64[n]. For duplicate keys, the last priority counts.
            priorities: finite absolute TD errors float64[n], as an array or a tensor. If a device is still computing
                the tensor, the call waits.

        Returns:
            Number of distinct rows updated, and of stale keys. If the update is split, a row counts once per call.

        Raises:
            InvalidArgumentError: the keys or the priorities are invalid.
            TableReplacedError: the table was dropped, and another one has its name.
        """
        keys = checked_keys(batch_or_keys)
        values = checked_priorities(priorities, len(keys))
        updated = stale = 0
        for part in _parts(len(keys), MOST_KEYS_AT_ONCE):
            update = replay_pb2.PriorityUpdate(keys=keys[part].tobytes(), priorities=values[part].tobytes())
            request = replay_pb2.UpdatePrioritiesRequest(table=self.name, table_uid=self.uid, update=update)
            answer = self._call("UpdatePriorities", request.SerializeToString(), self._connection.timeout_s, 0.0)
            result = replay_pb2.UpdatePrioritiesResponse.FromString(bytes(answer)).result
            updated += result.updated
            stale += result.stale
        return UpdateResult(updated, stale)

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
            InvalidArgumentError: the keys have another dtype or shape, or a name is unknown.
            TableReplacedError: the table was dropped, and another one has its name.
        """
        keys = checked_keys(batch_or_keys)
        reader = self._rows_reader(chosen_columns(self.schema, columns))
        most = max(1, min(READ_BYTES // max(1, reader.row_bytes), MOST_KEYS_AT_ONCE))
        return joined_rows([self._read_part(keys[part], reader) for part in _parts(len(keys), most)])

    def rows(
        self,
        *,
        chunk: int = 10_000,
        order: RowOrder = "key",
        progress: bool = False,
        columns: Collection[str] | None = None,
    ) -> RowReader:
        """Read all rows that are live now, in chunks: ``for rows in table.rows(): ...``.

        Rows inserted after this call are not read. Rows that are evicted or removed before they are read are counted in
        `RowReader.overtaken`, and a warning is logged at the end. Priorities are those of the moment of reading.

        Args:
            chunk: maximum rows per `Rows`.
            order: ``"key"``: in order of insertion. ``"episode"``, for tables of steps: all rows of an episode together
                and in step order; episodes that end earlier tend to come first, and an episode may continue in the next
                chunk. Rows of episodes that overlap in time are held in memory.
            progress: show a bar on standard error (needs the extra ``cli``).
            columns: names of stored columns to read, or of nested observations; None: all.

        Raises:
            InvalidArgumentError: for a number out of range, an unknown name or order, or a table without steps.
            MissingExtraError: the extra ``cli`` is not installed.
            TableNotFoundError: the table was dropped.
            TableReplacedError: the table was dropped, and another one has its name.
        """
        read = partial(self.read, columns=chosen_columns(self.schema, columns))
        return RowReader(read, self._described(), chunk=chunk, order=order, progress=progress)

    def writer(
        self,
        *,
        streams: int = 1,
        block_rows: int | None = None,
        max_blocks_in_flight: int = MAX_BLOCKS_IN_FLIGHT,
        max_delay_s: float = 0.1,
        reconnect_timeout_s: float | None = 60.0,
    ) -> Writer:
        """Create a writer for actors, which sends rows in the background.

        Args:
            streams: number of streams of experience, ``writer[i]``: one for each environment. They share a connection.
            block_rows: rows per block, which is one message. None: up to 1024 rows or 1 MiB, but at least one row of
                each stream.
            max_blocks_in_flight: number of unacknowledged blocks, 1 to 16, at which `append` waits.
            max_delay_s: maximum seconds that a row waits in an incomplete block before the block is sent.
            reconnect_timeout_s: seconds to retry an unreachable server. None: the client's default; 0: do not retry;
                `math.inf`: forever.

        Raises:
            InvalidArgumentError: for a number out of range.
            ClosedError: the client is closed.
        """
        self._connection.reach()
        return Writer(
            self._connection,
            self._description,
            streams=streams,
            block_rows=block_rows,
            max_blocks_in_flight=max_blocks_in_flight,
            max_delay_s=max_delay_s,
            reconnect_timeout_s=reconnect_timeout_s,
            open_around=partial(self._data_path.open_stream, "Write"),
        )

    @overload
    def sampler(
        self,
        batch_size: int,
        *,
        beta: float | None = ...,
        weight_norm: WeightNorm = ...,
        draw_mode: DrawMode = ...,
        prefetch: int = ...,
        timeout_s: float | None = ...,
        reconnect_timeout_s: float | None = ...,
        columns: Collection[str] | None = ...,
        device: None = ...,
    ) -> Sampler: ...

    @overload
    def sampler(
        self,
        batch_size: int,
        *,
        beta: float | None = ...,
        weight_norm: WeightNorm = ...,
        draw_mode: DrawMode = ...,
        prefetch: int = ...,
        timeout_s: float | None = ...,
        reconnect_timeout_s: float | None = ...,
        columns: Collection[str] | None = ...,
        device: Device,
    ) -> TensorSampler: ...

    def sampler(
        self,
        batch_size: int,
        *,
        beta: float | None = None,
        weight_norm: WeightNorm = "batch",
        draw_mode: DrawMode = "stratified",
        prefetch: int = 3,
        timeout_s: float | None = 0.0,
        reconnect_timeout_s: float | None = 60.0,
        columns: Collection[str] | None = None,
        device: Device | None = None,
    ) -> Sampler | TensorSampler:
        """Create a sampler for learners, which prefetches batches and sends updates on the same stream.

        Args:
            batch_size: rows in a batch, at least 1.
            beta: exponent of the weights, as for `sample`; can be changed later.
            weight_norm: as for `sample`.
            draw_mode: as for `sample`.
            prefetch: number of batches in flight; 1: no prefetching. A draw misses the last ``prefetch - 1`` updates.
            timeout_s: seconds to wait for a batch while the table is empty, or its rate limiter or queue does not
                allow the draw. 0: do not wait; None: the client's default; `math.inf`: forever. Prefetched batches
                count as drawn for the limiter.
            reconnect_timeout_s: seconds to retry an unreachable server, as for `writer`.
            columns: names of the columns to draw, as for `sample`.
            device: prefetch batches as tensors on this device (needs torch); a draw misses the last ``prefetch``
                updates. None: batches are NumPy arrays.

        Raises:
            InvalidArgumentError: for a number out of range, an unknown name, or a missing `beta`.
            ClosedError: the client is closed.
        """
        self._connection.reach()
        reader = self._batch_reader(self._chosen(columns))
        sampler = Sampler(
            self._connection,
            self._description,
            self._draw(batch_size, beta, weight_norm, draw_mode, timeout_s, reader),
            reader,
            partial(self._drawn_over_wire, reader),
            open_around=partial(self._data_path.open_stream, "Learn"),
            prefetch=prefetch,
            reconnect_timeout_s=reconnect_timeout_s,
        )
        if device is None:
            return sampler
        from replay_client._tensors import TensorSampler  # torch is optional

        return TensorSampler(sampler, device)

    def describe(self) -> TableDescription:
        """Fetch the current description, including row counts.

        The table is looked up by name; compare `TableDescription.uid` to detect that it was replaced.

        Raises:
            TableNotFoundError: the table was dropped.
        """
        return self._link.described(self.name)

    def stats(self) -> TableStats:
        """Fetch statistics of the table; a cheap call.

        Raises:
            TableNotFoundError: the table was dropped.
        """
        response = self._connection.call_message(
            "Stats", replay_pb2.StatsRequest(table=self.name), replay_pb2.StatsResponse, repeat=True
        )
        return Stats.from_proto(response).tables[self.name]

    def inspect(self) -> Inspection:
        """Fetch the distribution of the rows. This takes up to a few tenths of a second, but other calls do not wait.

        Raises:
            TableReplacedError: the table was dropped, and another one has its name.
        """
        request = replay_pb2.InspectRequest(table=self.name, table_uid=self.uid)
        response = self._connection.call_message("Inspect", request, replay_pb2.InspectResponse, repeat=True)
        return Inspection.from_proto(response)

    def reset(self) -> int:
        """Remove all rows. Keys of new rows continue the sequence.

        The call is not retried if the server goes away, because a second reset would remove newer rows.

        Returns:
            Number of rows removed.

        Raises:
            TableReplacedError: the table was dropped, and another one has its name.
        """
        request = replay_pb2.ResetTableRequest(table=self.name, table_uid=self.uid)
        response = self._connection.call_message("ResetTable", request, replay_pb2.ResetTableResponse, repeat=False)
        return response.removed

    def drop(self) -> None:
        """Drop the table.

        Raises:
            TableNotFoundError: the table was already dropped.
            TableReplacedError: the table was dropped, and another one has its name.
        """
        drop_table(self._connection, self.name, self.uid)

    def _described(self) -> TableDescription:
        """Fetch the current description; see `size` for errors."""
        description = self.describe()
        if description.uid != self.uid:
            raise TableReplacedError(
                f"table {self.name!r} was dropped, and another table now has its name",
                reason="TABLE_REPLACED",
                metadata={"table": self.name},
            )
        return description

    @property
    def _connection(self) -> Connection:
        return self._link.connection

    def _chosen(self, columns: Collection[str] | None) -> tuple[str, ...] | None:
        """Return the chosen columns of a batch by name; None: all."""
        if self.steps is None:
            return chosen_columns(self.schema, columns)
        return chosen_of_steps(self.steps, columns)

    def _draw(
        self,
        batch_size: int,
        beta: float | None,
        weight_norm: WeightNorm,
        draw_mode: DrawMode,
        timeout_s: float | None,
        reader: BatchReader,
    ) -> replay_pb2.Draw:
        wait_s = time_limit("timeout_s", timeout_s, self._connection.timeout_s)
        return draw_of(batch_size, beta_for(self.backend, beta), weight_norm, draw_mode, wait_s, reader.names)

    def _drawn_over_wire(self, reader: BatchReader, draw: replay_pb2.Draw) -> Batch:
        """Draw a replacement for a batch whose rows were overwritten during the copy."""
        batch = self._drawn(draw, None if reader.mapped is None else reader.mapped.request_again, reader)
        assert batch is not None
        return batch

    def _drawn(self, draw: replay_pb2.Draw, same_host: replay_pb2.SameHost | None, reader: BatchReader) -> Batch | None:
        """Draw a batch; None if inserts overwrote rows during the copy."""
        request = replay_pb2.SampleRequest(table=self.name, table_uid=self.uid, draw=draw, same_host=same_host)
        answer = self._call("Sample", request.SerializeToString(), *self._call_limits(draw.wait_s))
        return reader.sampled(answer)

    def _call_limits(self, wait_s: float) -> tuple[float, float]:
        """Return the time limit of a call that may wait ``wait_s`` for the table, and the margin, in seconds."""
        return (wait_s, _ANSWER_MARGIN_S) if wait_s else (self._connection.timeout_s, 0.0)

    def _call(
        self, method: Literal["Sample", "UpdatePriorities"], request: bytes, timeout_s: float, margin_s: float
    ) -> Content:
        """Make an idempotent call, using a shortcut if available."""
        self._connection.check_usable()
        deadline = time.monotonic() + timeout_s
        if self._data_path.calls is not None:
            answer = self._data_path.calls.call(method, request, timeout_s + margin_s)
            if answer is not None:
                return answer
        left = max(0.0, deadline - time.monotonic())
        return self._connection.call(method, request, timeout_s=left, margin_s=margin_s, repeat=True)

    def _read_part(self, keys: NDArray[np.int64], reader: RowsReader) -> Rows:
        request = replay_pb2.ReadRequest(table=self.name, table_uid=self.uid, keys=keys.tobytes(), columns=reader.names)
        answer = self._connection.call("Read", request.SerializeToString(), repeat=True)
        return reader.read(answer)


def drop_table(connection: Connection, name: str, uid: bytes) -> None:
    """Drop a table; an empty uid matches any table with the name. Never retried: a retry might drop a newer table.

    Raises:
        TableNotFoundError: the table does not exist.
        TableReplacedError: another table has its name.
    """
    request = replay_pb2.DropTableRequest(table=name, table_uid=uid)
    connection.call_message("DropTable", request, replay_pb2.DropTableResponse, repeat=False)


def _parts(count: int, most: int) -> list[slice]:
    """Split ``count`` items into slices of at most ``most`` items; no items give one empty slice."""
    return [slice(start, min(start + most, count)) for start in range(0, count, most)] or [slice(0, 0)]
