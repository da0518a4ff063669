"""The way in: a client of one server.

    with ReplayClient("localhost:50051") as client:
        table = client.create_table("cartpole", columns={"obs": Column("float32", (4,)), ...}, capacity=1_000_000)

Calls wait for a server that is starting or restarting, up to `timeout_s`. Threads may share a client; processes may
not: after a fork it raises `ForkedError`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Final

from replay_proto.schema import Column
from replay_proto.v1 import replay_pb2

from replay_client.checkpoints import Checkpoint
from replay_client.connection import Connection
from replay_client.data_path import DataPath
from replay_client.description import TableDescription, table_config
from replay_client.direct import FramePort, host_of
from replay_client.errors import InvalidArgumentError
from replay_client.frame_calls import FrameCalls
from replay_client.security import Tls
from replay_client.stats import Stats
from replay_client.table import Table, drop_table
from replay_client.time_limits import time_limit

DEFAULT_TIMEOUT_S: Final = 30.0
_LOOK_UP_S: Final = 0.5
"""How long a server may take that is asked where its port is now: it may be away."""


class ReplayClient:
    """See the module."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        same_host: bool = True,
        frame_port: bool = True,
    ) -> None:
        """Open a channel; the server need not be there yet.

        Args:
            address: ``host:port``.
            token: says who calls, where the server wants to know; it travels in plain text unless there is `tls`.
            tls: how to encrypt, and what makes sure of the server; None: neither.
            timeout_s: how long a call may take, in seconds, a wait for the server included; `math.inf`: for ever.
                It is the limit wherever a method's `timeout_s` is None.
            same_host: where the server is on this host, copy rows of batches out of its files instead of having them
                sent, and make a learner's calls over a unix-domain socket; `TableStats.sampled_same_host` tells
                whether rows are copied.
            frame_port: where the server is on another host, and has a port for it, make a learner's calls over plain
                TCP instead of gRPC; never with `tls`. `TableStats.sampled_in_frames` tells whether rows come this way.

        Raises:
            InvalidArgumentError: for an empty address, a time that is not positive, a token that cannot be one, or a
                file of `tls` that cannot be read.
        """
        if not isinstance(address, str) or not address:
            raise InvalidArgumentError.of_field("address", "host:port", repr(address))
        if timeout_s is None or not time_limit("timeout_s", timeout_s, DEFAULT_TIMEOUT_S):
            raise InvalidArgumentError.of_field("timeout_s", "a positive number of seconds", repr(timeout_s))
        self._connection = Connection(address, timeout_s=timeout_s, token=token, tls=tls)
        self._same_host = same_host
        self._frame_host = host_of(address) if frame_port and tls is None else None
        self._calls: weakref.WeakSet[FrameCalls] = weakref.WeakSet()

    @property
    def address(self) -> str:
        """As it was given."""
        return self._connection.address

    def create_table(
        self,
        name: str,
        *,
        columns: Mapping[str, Column],
        capacity: int,
        backend: str = "sum_tree",
        seed: int | None = None,
        min_size: float | None = None,
        samples_per_insert: float | None = None,
        error_buffer: float | tuple[float, float] | None = None,
        **parameters: float | None,
    ) -> Table:
        """Make a table, or find it, if one of this name and the very same config exists.

        Args:
            name: 1 to 128 letters, digits, '_', '-' and '.', a letter or digit first.
            columns: dtype and shape of every column, by name; nested observations are ``obs/name``
                (`replay_client.spaces.columns_from_space` makes them of a Gymnasium space).
            capacity: number of rows kept; with ``"rank"`` at most 2,000,000,000.
            backend: ``"sum_tree"`` (proportional to mass), ``"rank"``, ``"uniform"``, or ``"fifo"``: a queue,
                whose rows go out oldest first and are gone then, and whose inserts wait when it is full.
            seed: makes draws repeat for the same operations in the same order.
            min_size: draws wait until there are so many rows, a whole number.
            samples_per_insert: how often a row is drawn on average: while there are `min_size` rows, draws wait for
                inserts and inserts for draws to keep it.
            error_buffer: how many samples it may be off to either side (or from which to which difference, as for
                Reverb's ``SampleToInsertRatio``); required with `samples_per_insert`. Batches that a sampler
                prefetches count as drawn.
            **parameters: of the backend; what is left out, or None, takes its default. ``sum_tree``: `alpha` (0.6),
                `epsilon` (1e-6), `max_priority` (none). ``rank``: `alpha` (0.6). ``fifo``: `max_times_sampled` (1).

        Raises:
            TableExistsError: a table of this name has another config.
            ResourceExhaustedError: it would be too large, or one too many.
            InvalidArgumentError: for a config that cannot be.
            ReplayError: another failure.
        """
        limit = (min_size, samples_per_insert, error_buffer)
        config = table_config(name, columns, capacity, backend, seed, parameters, limit)
        response = self._connection.call_message(
            "CreateTable", replay_pb2.CreateTableRequest(config=config), replay_pb2.CreateTableResponse, repeat=True
        )
        return self._table(response.table)

    def table(self, name: str) -> Table:
        """A table that exists.

        Raises:
            TableNotFoundError: there is none of this name.
            ReplayError: another failure.
        """
        return self._table(self._described(name))

    def tables(self) -> list[TableDescription]:
        """All tables as they stand, in the order of their names.

        Raises:
            ReplayError: a failure.
        """
        response = self._connection.call_message(
            "ListTables", replay_pb2.ListTablesRequest(), replay_pb2.ListTablesResponse, repeat=True
        )
        return [TableDescription.from_proto(table) for table in response.tables]

    def drop_table(self, name: str) -> None:
        """Remove whichever table has this name, and its rows.

        Raises:
            TableNotFoundError: there is none.
            ReplayError: another failure.
        """
        drop_table(self._connection, name, b"")

    def stats(self) -> Stats:
        """Figures of the server and all its tables; cheap.

        Raises:
            ReplayError: a failure.
        """
        response = self._connection.call_message(
            "Stats", replay_pb2.StatsRequest(), replay_pb2.StatsResponse, repeat=True
        )
        return Stats.from_proto(response)

    def checkpoint(
        self,
        tables: Iterable[str] = (),
        *,
        series: str = "checkpoint",
        keep: int | None = None,
        timeout_s: float | None = None,
    ) -> Checkpoint:
        """Have the server write a checkpoint: a consistent copy of tables, while service goes on.

        It is not repeated when the server goes away in the middle.

        Args:
            tables: names of the tables; none: all.
            series: what it is one of: its name is the series and a number.
            keep: how many of the series stay, this one included; None: as the server is set.
            timeout_s: how long it may take, in seconds; None: the client's own limit, `math.inf`: for ever. The
                server goes on even so.

        Raises:
            CheckpointsOffError: the server has no directory for checkpoints.
            TableNotFoundError: there is no such table.
            ResourceExhaustedError: the disk is full. Earlier checkpoints stay.
            InvalidArgumentError: for a series that cannot be a name.
            ReplayError: another failure.
        """
        if keep is not None and keep < 1:
            raise InvalidArgumentError.of_field("keep", "at least 1, or None", repr(keep))
        request = replay_pb2.CheckpointRequest(tables=tables, series=series, keep=keep or 0)
        response = self._connection.call_message(
            "Checkpoint", request, replay_pb2.CheckpointResponse, timeout_s=timeout_s, repeat=False
        )
        return Checkpoint.from_proto(response.checkpoint)

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints of the server, oldest first.

        Raises:
            CheckpointsOffError: the server has no directory for checkpoints.
            ReplayError: another failure.
        """
        response = self._connection.call_message(
            "ListCheckpoints", replay_pb2.ListCheckpointsRequest(), replay_pb2.ListCheckpointsResponse, repeat=True
        )
        return [Checkpoint.from_proto(checkpoint) for checkpoint in response.checkpoints]

    def verify_checkpoint(self, name: str, *, timeout_s: float | None = None) -> Checkpoint:
        """Have the server read a checkpoint through and compare every file with its checksum.

        Args:
            name: of the checkpoint.
            timeout_s: how long it may take, in seconds; None: the client's own limit, `math.inf`: for ever.

        Raises:
            CheckpointDamagedError: names the file that is damaged.
            CheckpointNotFoundError: there is none of this name.
            ReplayError: another failure.
        """
        response = self._connection.call_message(
            "VerifyCheckpoint",
            replay_pb2.VerifyCheckpointRequest(name=name),
            replay_pb2.VerifyCheckpointResponse,
            timeout_s=timeout_s,
            repeat=True,
        )
        return Checkpoint.from_proto(response.checkpoint)

    def close(self) -> None:
        """Close all connections. Writers and samplers are closed first, by those who made them."""
        if not self._connection.is_forked:
            for calls in list(self._calls):
                calls.close()
        self._connection.close()

    def __enter__(self) -> ReplayClient:
        """Use it in a ``with`` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _described(self, name: str, timeout_s: float | None = None) -> replay_pb2.TableDescription:
        response = self._connection.call_message(
            "DescribeTable",
            replay_pb2.DescribeTableRequest(table=name),
            replay_pb2.DescribeTableResponse,
            timeout_s=timeout_s,
            repeat=True,
        )
        return response.table

    def _table(self, message: replay_pb2.TableDescription) -> Table:
        description = TableDescription.from_proto(message)
        path = self._data_path(description)
        if path.calls is not None:
            self._calls.add(path.calls)
        return Table(self._connection, description, path)

    def _data_path(self, table: TableDescription) -> DataPath:
        """The shortest way to a table."""
        authorization = self._connection.authorization
        path = DataPath.on_same_host(table, authorization) if self._same_host else DataPath()
        if path.calls is not None or self._frame_host is None or not table.frame_port:
            return path
        return replace(path, calls=FramePort(table, self._frame_host, authorization, self._look_up(table.name)))

    def _look_up(self, name: str) -> Callable[[], TableDescription]:
        """Describes a table as it is now, if the server is there."""
        return lambda: TableDescription.from_proto(self._described(name, _LOOK_UP_S))
