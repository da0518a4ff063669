"""The way in: a client of one server.

    with ReplayClient("localhost:50051") as client:
        table = client.create_table("cartpole", columns={"obs": Column("float32", (4,)), ...}, capacity=1_000_000)

The first call says soon if there is no server (`wait_for_server_s`). Later ones wait for a server that restarts, up to
`timeout_s`. Threads may share a client. Processes may not: after a fork it raises `ForkedError`.

Clients and tables pickle and copy, and connect again where they are used first. A token does not travel: a client that
was made with one takes that of the variable REPLAY_TOKEN in the process that receives it, and raises
`UnauthenticatedError` if there is none. Files of TLS travel as paths.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final, Literal, get_args

from replay_proto.schema import Column
from replay_proto.v1 import replay_pb2

from replay_client._transport.address import checked_address
from replay_client._transport.connection import FIRST_CONTACT_S
from replay_client._transport.server_link import LinkOptions, ServerLink
from replay_client._transport.time_limits import time_limit
from replay_client.errors import InvalidArgumentError, TableExistsError, TableNotFoundError
from replay_client.results.checkpoints import Checkpoint
from replay_client.results.description import TableDescription, table_config
from replay_client.results.stats import Stats
from replay_client.security import Tls
from replay_client.table import Table, drop_table

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S: Final = 30.0
IfExists = Literal["open", "reset", "error"]
"""What `ReplayClient.create_table` does with a table that exists."""


class ReplayClient:
    """See the module."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        wait_for_server_s: float | None = FIRST_CONTACT_S,
        same_host: bool = True,
    ) -> None:
        """Open a channel; the server need not be there yet.

        Args:
            address: ``host:port``, or gRPC's ``dns:...`` or ``unix:path``.
            token: says who calls, where the server wants to know; it travels in plain text unless there is `tls`.
            tls: how to encrypt, and what makes sure of the server; None: neither.
            timeout_s: how long a call may take, in seconds, a wait for the server included; `math.inf`: for ever.
                It is the limit wherever a method's `timeout_s` is None.
            wait_for_server_s: how long to wait for a server that is not there, in seconds, before the first contact.
                0: not at all; None: `timeout_s`; `math.inf`: for ever. Once it has answered, every call waits up to
                its own limit for a server that restarts.
            same_host: where the server is on this host, copy rows of batches out of its files instead of having them
                sent, and make a learner's calls over a unix-domain socket; `TableStats.sampled_same_host` tells
                whether rows are copied.

        Raises:
            InvalidArgumentError: for an address of another form, an invalid time limit, a token that cannot be one, or
                a file of `tls` that cannot be read.
        """
        own_s = time_limit("timeout_s", timeout_s, 0.0)
        if not own_s:
            raise InvalidArgumentError.of_field("timeout_s", "a positive number of seconds", repr(timeout_s))
        options = LinkOptions(
            address=checked_address(address),
            timeout_s=own_s,
            wait_for_server_s=time_limit("wait_for_server_s", wait_for_server_s, own_s),
            tls=tls,
            same_host=same_host,
        )
        self._link = ServerLink(options, token)
        self._link.connection  # noqa: B018 - files of TLS are read, and refused, here

    @property
    def address(self) -> str:
        """As it was given."""
        return self._link.options.address

    def __repr__(self) -> str:
        """Where to."""
        return f"<ReplayClient of {self.address}>"

    def create_table(
        self,
        name: str,
        *,
        columns: Mapping[str, Column],
        capacity: int,
        backend: str = "sum_tree",
        seed: int | None = None,
        if_exists: IfExists | None = None,
        min_size: float | None = None,
        samples_per_insert: float | None = None,
        error_buffer: float | tuple[float, float] | None = None,
        **parameters: float | None,
    ) -> Table:
        """Make a table, or open the one that has this name.

        A table that is opened has to have the same config but for the seed; it keeps its own. `Table.created` tells
        which it was.

        Args:
            name: 1 to 128 letters, digits, '_', '-' and '.', a letter or digit first.
            columns: dtype and shape of every column, by name; nested observations are ``obs/name``
                (`replay_client.spaces.columns_from_space` makes them of a Gymnasium space).
            capacity: number of rows kept; with ``"rank"`` at most 2,000,000,000.
            backend: ``"sum_tree"`` (proportional to mass), ``"rank"``, ``"uniform"``, or ``"fifo"``: a queue,
                whose rows go out oldest first and are gone then, and whose inserts wait when it is full.
            seed: makes draws repeat for the same operations in the same order.
            if_exists: what to do with a table of this name and config: ``"open"`` it with its rows, ``"reset"`` it,
                or raise an ``"error"``. None opens it, too, but logs a warning if it has rows. A reset is a call of
                its own after opening: of two callers, the later one removes what the earlier one has inserted since.
            min_size: draws wait until there are so many rows, a whole number.
            samples_per_insert: how often a row is drawn on average: while there are `min_size` rows, draws wait for
                inserts and inserts for draws to keep it.
            error_buffer: how many samples it may be off to either side (or from which to which difference, as for
                Reverb's ``SampleToInsertRatio``); required with `samples_per_insert`. Batches that a sampler
                prefetches count as drawn.
            **parameters: of the backend; what is left out, or None, takes its default. ``sum_tree``: `alpha` (0.6),
                `epsilon` (1e-6), `max_priority` (none). ``rank``: `alpha` (0.6). ``fifo``: `max_times_sampled` (1).

        Raises:
            TableExistsError: a table of this name has another config, or exists at all and that is to be an error.
            ResourceExhaustedError: it would be too large, or one too many.
            InvalidArgumentError: for a config that cannot be.
            ReplayError: another failure.
        """
        limit = (min_size, samples_per_insert, error_buffer)
        config = table_config(name, columns, capacity, backend, seed, parameters, limit)
        if if_exists not in (None, *get_args(IfExists)):
            raise InvalidArgumentError.of_field("if_exists", "'open', 'reset' or 'error'", repr(if_exists))
        response = self._link.connection.call_message(
            "CreateTable",
            replay_pb2.CreateTableRequest(config=config),
            replay_pb2.CreateTableResponse,
            repeat=if_exists != "error",  # a repeat might find what the first attempt made
        )
        description = TableDescription.from_proto(response.table)
        table = Table(self._link, description, created=response.created)
        if not table.created:
            _opened(table, description, if_exists)
        return table

    def table(self, name: str) -> Table:
        """A table that exists.

        Raises:
            TableNotFoundError: there is none of this name.
            ReplayError: another failure.
        """
        return Table(self._link, self._link.described(name))

    def tables(self) -> list[TableDescription]:
        """All tables as they stand, in the order of their names.

        Raises:
            ReplayError: a failure.
        """
        response = self._link.connection.call_message(
            "ListTables", replay_pb2.ListTablesRequest(), replay_pb2.ListTablesResponse, repeat=True
        )
        return [TableDescription.from_proto(table) for table in response.tables]

    def drop_table(self, name: str) -> None:
        """Remove whichever table has this name, and its rows.

        Raises:
            TableNotFoundError: there is none.
            ReplayError: another failure.
        """
        drop_table(self._link.connection, name, b"")

    def stats(self) -> Stats:
        """Figures of the server and all its tables; cheap.

        Raises:
            ReplayError: a failure.
        """
        response = self._link.connection.call_message(
            "Stats", replay_pb2.StatsRequest(), replay_pb2.StatsResponse, repeat=True
        )
        return Stats.from_proto(response)

    def checkpoint(
        self,
        tables: Iterable[str] = (),
        *,
        series: str | None = None,
        keep: int | None = None,
        timeout_s: float | None = None,
    ) -> Checkpoint:
        """Have the server write a checkpoint: a consistent copy of tables, while service goes on.

        It is not repeated when the server goes away in the middle.

        Args:
            tables: names of the tables; none: all.
            series: what it is one of: its name is the series and a number. None: "checkpoint", or with a token of
                some tables the name of the first.
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
        request = replay_pb2.CheckpointRequest(tables=tables, series=series or "", keep=keep or 0)
        response = self._link.connection.call_message(
            "Checkpoint", request, replay_pb2.CheckpointResponse, timeout_s=timeout_s, repeat=False
        )
        return Checkpoint.from_proto(response.checkpoint)

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints of the server, oldest first.

        Raises:
            CheckpointsOffError: the server has no directory for checkpoints.
            ReplayError: another failure.
        """
        response = self._link.connection.call_message(
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
        response = self._link.connection.call_message(
            "VerifyCheckpoint",
            replay_pb2.VerifyCheckpointRequest(name=name),
            replay_pb2.VerifyCheckpointResponse,
            timeout_s=timeout_s,
            repeat=True,
        )
        return Checkpoint.from_proto(response.checkpoint)

    def close(self) -> None:
        """Close all connections. Writers and samplers are closed first, by those who made them."""
        self._link.close()

    def __enter__(self) -> ReplayClient:
        """Use it in a ``with`` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def __contains__(self, name: object) -> bool:
        """Whether the server has a table of this name.

        Raises:
            ReplayError: a failure.
        """
        try:
            self._link.described(str(name))
        except TableNotFoundError:
            return False
        return True

    def __getitem__(self, name: str) -> Table:
        """A table that exists, as `table` returns it."""
        return self.table(name)

    def __iter__(self) -> Iterator[str]:
        """The names of all tables, in order."""
        return iter([table.name for table in self.tables()])

    def __reduce__(self) -> tuple[Callable[..., ReplayClient], tuple[object, ...]]:
        """Pickle the options; see the module."""
        return _client_over, (self._link,)

    def __copy__(self) -> ReplayClient:
        """A client with a connection of its own: closing one leaves the other open."""
        return copy.deepcopy(self)


def _client_over(link: ServerLink) -> ReplayClient:
    client = ReplayClient.__new__(ReplayClient)
    client._link = link
    return client


def _opened(table: Table, description: TableDescription, if_exists: IfExists | None) -> None:
    """Apply `if_exists` to a table that existed."""
    if if_exists == "error":
        raise TableExistsError(
            f"table {table.name!r} already exists, with {description.size:,} rows",
            reason="TABLE_EXISTS",
            metadata={"table": table.name},
        )
    if if_exists == "reset":
        table.reset()
    if if_exists is None and description.size:
        log.warning(
            "opened existing table %r with %s rows; pass if_exists='open' to "
            "silence this, or if_exists='reset' to empty it",
            table.name,
            f"{description.size:,}",
        )
