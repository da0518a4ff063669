"""A client of one server, the entry point of the library.

    with ReplayClient("localhost:50051") as client:
        table = client.create_table("cartpole", columns={"obs": Column("float32", (4,)), ...}, capacity=1_000_000)

The first call fails quickly if there is no server (`wait_for_server_s`). Later calls wait up to `timeout_s` for a
restarting server. Threads may share a client, but processes may not: in a forked child, it raises `ForkedError`.

Clients and tables can be pickled and copied; they reconnect on first use. A token is pickled only for a process that
`multiprocessing` spawns. In any other process, an unpickled client that had a token reads REPLAY_TOKEN instead, and
raises `UnauthenticatedError` if that is not set. TLS files are pickled as paths.

Any call to the server may raise `ReplayError`; methods list only more specific errors.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, overload

from replay_proto.schema import Column
from replay_proto.steps import Derived, Item, Steps

from replay_client._extras import check_extra
from replay_client._learning.handle import check_device
from replay_client._operations import server as operations
from replay_client._operations.mixing import Mixture, checked_sizes
from replay_client._operations.server import IfExists
from replay_client._transport.attempts import FIRST_CONTACT_S
from replay_client._transport.call import Operation, time_limit
from replay_client._transport.connection import SessionOptions
from replay_client._transport.session import Session
from replay_client.batch import Published
from replay_client.draws import DEFAULT_BETA, DrawMode, Prefetch, SamplerOptions, WeightNorm
from replay_client.errors import InvalidArgumentError, ShardsChangedError, TableNotFoundError
from replay_client.results.copies import Checkpoint
from replay_client.results.description import TableDescription
from replay_client.results.shards import ShardMap
from replay_client.results.stats import Stats
from replay_client.security import Tls, Token
from replay_client.sync.channels import Channels
from replay_client.sync.mixed_sampler import MixedSampler
from replay_client.sync.row_loader import check_room
from replay_client.sync.shards.administration import Shards
from replay_client.sync.shards.opening import create_sharded, open_sharded
from replay_client.sync.shards.servers.checkpointing import list_parts, verify_parts, write_parts
from replay_client.sync.shards.servers.fleet import Fleet
from replay_client.sync.shards.servers.members import described
from replay_client.sync.shards.servers.removal import drop_all
from replay_client.sync.shards.servers.service import map_of, stats_of_all, tables_of_all
from replay_client.sync.shards.sharded_loader import keys_refused
from replay_client.sync.table import Table

if TYPE_CHECKING:
    from replay_client._learning.tensors import Device
    from replay_client.sync.tensors import MixedTensorSampler

T = TypeVar("T")

DEFAULT_TIMEOUT_S: Final = 30.0


class ReplayClient:
    """A connection to a replay server; see the module docstring."""

    def __init__(
        self,
        address: str,
        *,
        token: Token | None = None,
        tls: Tls | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        wait_for_server_s: float | None = FIRST_CONTACT_S,
        same_host: bool = True,
    ) -> None:
        """Open a channel; the server may start later.

        Args:
            address: ``host:port``, or gRPC's ``dns:...`` or ``unix:path``. With several addresses, separated by commas,
                tables are distributed over these servers; see docs/operations/scaling.md. Later clients need only one
                of them.
            token: for a server that requires one; sent in plain text without `tls`. The path of a file is read again
                when the file changes; a function is called before each call, see `replay_client.security.Token`.
            tls: certificates for TLS; None: plain text.
            timeout_s: default time limit of calls in seconds, including waits for the server; `math.inf`: none. It
                applies wherever a method's `timeout_s` is None.
            wait_for_server_s: time limit for the first contact, in seconds. 0: do not wait; None: `timeout_s`;
                `math.inf`: forever. After the first contact, each call waits for a restarting server up to its own
                limit.
            same_host: if the server is on this host, copy the rows of batches from its files instead of receiving them,
                and make the calls of learners and writers over a unix-domain socket. `TableStats.sampled_same_host`
                counts the copied rows.

        Raises:
            InvalidArgumentError: for a malformed address or token, an invalid time limit, or an unreadable TLS file.
        """
        sessions = [
            Session(
                SessionOptions.checked(
                    each, timeout_s=timeout_s, wait_for_server_s=wait_for_server_s, tls=tls, same_host=same_host
                ),
                token,
            )
            for each in _split(address)
        ]
        self._session = sessions[0]
        self._fleet = Fleet(sessions)
        self._has_several = len(sessions) > 1
        self._channels = Channels()
        self._session.connection  # noqa: B018 - reads and validates TLS files

    @property
    def address(self) -> str:
        """The server's address, as given; several are separated by commas."""
        return ",".join(self._fleet.seeds)

    def __repr__(self) -> str:
        return f"<ReplayClient of {self.address}>"

    def create_table(
        self,
        name: str,
        *,
        columns: Mapping[str, Column | Derived],
        capacity: float,
        backend: str = "sum_tree",
        steps: Item | None = None,
        seed: int | None = None,
        if_exists: IfExists | None = None,
        min_size: float | None = None,
        samples_per_insert: float | None = None,
        error_buffer: float | tuple[float, float] | None = None,
        alpha: float | None = None,
        epsilon: float | None = None,
        max_priority: float | None = None,
        max_times_sampled: float | None = None,
    ) -> Table:
        """Create a table, or open an existing one with this name and config.

        An existing table keeps its seed, which may differ. `Table.created` tells whether the table is new.

        Args:
            name: 1 to 128 letters, digits, '_', '-' and '.'; the first is a letter or a digit.
            columns: dtype and shape of every column, by name. Columns of nested observations are named ``obs/name``
                (`replay_client.spaces.columns_from_space` derives them from a Gymnasium space). A table of steps may
                also have derived columns: `Stack`, `Next`, `Return`, `Discount`, `Mask`.
            capacity: maximum number of rows, such as 1_000_000 or 1e6; at most 2,000,000,000 with ``"rank"``.
            backend: ``"sum_tree"`` (proportional to mass), ``"rank"``, ``"uniform"``, or ``"fifo"``: a queue,
                whose draws remove the oldest rows, and whose inserts wait when it is full.
            steps: makes this a table of steps, which draws `Transitions` or `Sequences` of them; see
                docs/concepts/steps.md.
            seed: makes draws reproducible for the same operations in the same order, on a single server.
            if_exists: what to do with an existing table: ``"open"`` it with its rows, ``"reset"`` it, or raise an
                ``"error"``. None also opens it, but logs a warning if it has rows. The reset is a separate call: if
                two callers reset, the later reset also removes rows that the earlier caller has inserted since.
            min_size: number of rows required before draws are allowed.
            samples_per_insert: average number of draws per row. Once the table has `min_size` rows, draws and inserts
                wait for each other to maintain this ratio.
            error_buffer: allowed deviation from that ratio, in samples, or a pair of bounds, as in Reverb's
                ``SampleToInsertRatio``; required with `samples_per_insert`. Prefetched batches count as drawn.
            alpha: priority exponent of ``"sum_tree"`` or ``"rank"``; None: 0.6.
            epsilon: added to each priority in a ``"sum_tree"``; None: 1e-6.
            max_priority: limit of the priorities of a ``"sum_tree"``, with `epsilon`; None: no limit.
            max_times_sampled: how often each row can be drawn; None: once from a ``"fifo"`` queue, or else any number
                of times. With another backend, a row that had its last draw stays in the table until newer rows replace
                it, and `read` still finds it.

        Raises:
            TableExistsError: the table exists with another config, or it exists and `if_exists` is ``"error"``.
            ResourceExhaustedError: the table would be too large, or there are too many tables.
            InvalidArgumentError: the config is invalid.
        """
        config = operations.table_config(
            name,
            columns=columns,
            capacity=capacity,
            backend=backend,
            steps=steps,
            seed=seed,
            min_size=min_size,
            samples_per_insert=samples_per_insert,
            error_buffer=error_buffer,
            alpha=alpha,
            epsilon=epsilon,
            max_priority=max_priority,
            max_times_sampled=max_times_sampled,
        )
        if not self._has_several:
            try:
                description, created = self._run(operations.create_table(config, if_exists))
            except ShardsChangedError:
                pass  # The server is one of several.
            else:
                return Table(self._session, description, created=created)
        return create_sharded(self._fleet, config, if_exists)

    def load_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        priorities: bool = True,
        keys: bool = False,
        timeout_s: float | None = None,
        progress: bool = False,
        **config: Any,
    ) -> Table:
        """Create a table with the config and the rows of a file that `Table.to_parquet` wrote.

        ``name`` is that of the new table; None: that of the exported one. ``config`` has arguments of `create_table`,
        except `columns`, that replace those of the exported table. Other arguments are as for `Table.load_parquet`.

        Raises:
            TableExistsError: there is a table with this name; to add rows to it, call `Table.load_parquet`.
            InvalidArgumentError: the file has no config, or an option is not possible. No table was created.
            ReplayError: as for `create_table` and `Table.load_parquet`. If not all rows can be inserted, the table
                remains.
        """
        check_extra("arrow", "pyarrow")
        if progress:
            check_extra("cli", "rich")
        from replay_client.sync import arrow  # pyarrow is optional

        time_limit("timeout_s", timeout_s, self._session.options.timeout_s)
        rows = arrow.ParquetRows(path)
        exported = rows.table()
        if "columns" in config:
            raise InvalidArgumentError.of_field("columns", "none, because the file has them", repr(config["columns"]))
        given = {**exported.create_arguments(keep_parameters="backend" not in config), "if_exists": "error", **config}
        check_room(rows.row_count, given)
        if "steps" in config:
            steps = None if config["steps"] is None else Steps.of(given["columns"], config["steps"])
            exported = replace(exported, steps=steps)
        rows.check(exported, priorities=priorities, keys=keys)
        if keys and (self._has_several or self._fleet.current() is not None):
            raise keys_refused(self.address)
        table = self.create_table(name or exported.name, **given)
        loader = table.loader(priorities=priorities, timeout_s=timeout_s)
        rows.load(exported, loader, priorities=priorities, keys=keys, progress=progress)
        return table

    def table(self, name: str) -> Table:
        """Open an existing table.

        Raises:
            TableNotFoundError: the table does not exist.
        """
        if not self._has_several:
            try:
                description, shards = self._run(operations.open_table(name))
            except TableNotFoundError:
                if self._fleet.current() is None:
                    raise
            else:
                if shards is None:
                    return Table(self._session, description)
        return open_sharded(self._fleet, self._fleet.find(), name)

    def publish(self, name: str, values: Any, *, timeout_s: float | None = None) -> int:
        """Publish state for other programs, such as the weights of a policy for its actors.

        `latest` reads it. The first call creates a table with this name, whose rows are the state in parts of 64 KiB,
        and which keeps the last few publications. Later calls publish the same arrays with other values.

        Args:
            name: the name, as for `create_table`.
            values: a mapping of names to arrays, tensors on any device, numbers or further mappings; or an object with
                a ``state_dict`` method, such as a ``torch.nn.Module``.
            timeout_s: seconds to wait for an unreachable server. None: the client's default.

        Returns:
            The version of this publication: higher than those of all earlier ones.

        Raises:
            InvalidArgumentError: a value is no array; an array has another dtype or shape than in the last publication,
                or is missing or new; or another table has this name. Nothing was published.
            PermissionDeniedError: the token may not write to this table or, if it does not exist, not create it.
            ReplayError: as for `create_table` and `Table.insert`. Readers never see a part of a publication.
        """
        return self._channels.publish(self, name, values, timeout_s)

    def latest(self, name: str, *, wait_newer: int | None = None, timeout_s: float | None = None) -> Published:
        """Read what was published last: ``version, values = client.latest("policy")``.

        If nothing was published under this name, wait for it; after 10 s, the log says so. On the server's host, the
        values are copied from its files.

        Args:
            name: the name.
            wait_newer: version that the caller has: wait for another one. The server tells when it comes.
            timeout_s: seconds to wait. None: the client's default; 0: do not wait; `math.inf`: forever.

        Returns:
            The version, and the arrays by name.

        Raises:
            DeadlineExceededError: nothing, or nothing but this version, was published in time.
            TableNotFoundError: nothing was published under this name, in time.
            InvalidArgumentError: another table has this name, or an argument is invalid.
        """
        return self._channels.latest(self, name, wait_newer, timeout_s)

    @overload
    def mixed_sampler(
        self,
        batch_sizes: Mapping[str, int],
        *,
        device: None = ...,
        **options: Unpack[SamplerOptions],
    ) -> MixedSampler: ...

    @overload
    def mixed_sampler(
        self,
        batch_sizes: Mapping[str, int],
        *,
        device: Device,
        **options: Unpack[SamplerOptions],
    ) -> MixedTensorSampler: ...

    def mixed_sampler(
        self,
        batch_sizes: Mapping[str, int],
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
    ) -> MixedSampler | MixedTensorSampler:
        """Create a sampler whose batches have rows of several tables, such as ``{"online": 128, "demo": 128}``.

        Each table draws its rows as usual. In a batch, the rows are sorted by table. All tables must have the chosen
        columns, with the same dtypes and shapes.

        Args:
            batch_sizes: number of rows from each table, at least 1, by the table's name.
            beta: exponent of the weights, as for `Table.sample`; can be changed later.
            weight_norm: ``"batch"`` divides the weights by the largest one in the mixed batch, ``"table"`` by the
                largest one in any of the tables. See `MixedBatch`.
            draw_mode: as for `Table.sample`.
            prefetch: number of batches in flight, as for `Table.sampler`.
            timeout_s: seconds to wait for a table that is empty, or whose rate limiter or queue does not allow the
                draw, as for `Table.sampler`.
            reconnect_timeout_s: seconds to retry an unreachable server, as for `Table.sampler`.
            columns: names of the columns to draw, as for `Table.sample`. None: all columns of all tables.
            row_info: as for `Table.sample`.
            device: prefetch batches as tensors on this device, as for `Table.sampler`.

        Raises:
            TableNotFoundError: a table does not exist.
            InvalidArgumentError: a number is out of range, a name is unknown, or the tables' columns differ.
            MissingExtraError: there is a `device`, but torch is not installed.
        """
        check_device(device)
        sizes = checked_sizes(batch_sizes)
        tables = {name: self.table(name) for name in sizes}
        mixture = Mixture(tables, sizes, columns)
        parts = {
            name: table._part_sampler(
                mixture.names,
                blank=mixture.blank(name),
                batch_size=sizes[name],
                beta=beta,
                weight_norm=weight_norm,
                draw_mode=draw_mode,
                row_info=row_info,
                prefetch=prefetch,
                timeout_s=timeout_s,
                reconnect_timeout_s=reconnect_timeout_s,
            )
            for name, table in tables.items()
        }
        sampler = MixedSampler(parts, mixture.buffers, weight_norm=weight_norm, queues=mixture.queues)
        if device is None:
            return sampler
        from replay_client.sync.tensors import MixedTensorSampler  # torch is optional

        return MixedTensorSampler(sampler, device)

    def tables(self) -> list[TableDescription]:
        """List the descriptions of all tables, sorted by name; a table on several servers appears once."""
        if self._has_several:
            return tables_of_all(self._fleet, map_of(self._fleet))
        tables, shards = self._run(operations.list_tables())
        return tables if shards is None else tables_of_all(self._fleet, shards)

    def drop_table(self, name: str) -> None:
        """Drop the table with this name, on all servers.

        Raises:
            TableNotFoundError: the table does not exist.
            ServerUnavailableError: a server is away; the message names it. The table is dropped on the others. Call
                again when this server is back.
        """
        self._channels.forget(name)
        shards = self._all_shards()
        if shards is None:
            self._run(operations.drop_table(name))
        else:
            drop_all(self._fleet, shards, name, {})

    def stats(self) -> Stats:
        """Fetch statistics of the server and all tables; a cheap call.

        If tables are distributed over several servers, the result has figures of all servers together and of each one;
        see `Stats`. Servers that are away are left out and named.
        """
        if self._has_several:
            return stats_of_all(self._fleet, map_of(self._fleet))
        stats = self._run(operations.stats())
        return stats if stats.shards is None else stats_of_all(self._fleet, stats.shards)

    def checkpoint(
        self,
        tables: Iterable[str] = (),
        *,
        series: str | None = None,
        keep: int | None = None,
        timeout_s: float | None = None,
    ) -> Checkpoint:
        """Have the server write a checkpoint: a consistent copy of tables. The server keeps serving other calls.

        This call is not retried if the server goes away. If tables are distributed over several servers, each writes
        its part, with the same name, in its own directory; this requires the right ``admin`` on all tables.

        Args:
            tables: names of the tables; empty: all.
            series: prefix of the checkpoint's name, followed by a number. The default is "checkpoint". With a token
                restricted to some tables, it is the name of the first table.
            keep: checkpoints to keep in the series, including this one; None: the server's setting.
            timeout_s: time limit in seconds; None: the client's default; `math.inf`: forever. The server finishes the
                checkpoint even after that.

        Raises:
            CheckpointsOffError: the server has no --checkpoint-dir.
            TableNotFoundError: a table does not exist.
            ResourceExhaustedError: the disk is full. Earlier checkpoints are kept.
            InvalidArgumentError: for an invalid series name.
        """
        # Each part names its shard, so there must be a map.
        shards = self._fleet.find() if self._has_several else self._fleet.current()
        if shards is None:
            return self._run(operations.checkpoint(tables, series=series, keep=keep, timeout_s=timeout_s))
        sessions = self._fleet.sessions_of(shards)
        return write_parts(sessions, tables, series=series, keep=keep, timeout_s=timeout_s)

    def checkpoints(self) -> list[Checkpoint]:
        """List the server's checkpoints, oldest first. Parts on several servers are listed as one checkpoint.

        Those that cannot be read come first; see `Checkpoint.damage`.

        Raises:
            CheckpointsOffError: the server has no --checkpoint-dir.
        """
        if not self._has_several:
            found, shards = self._run(operations.list_checkpoints())
            return found if shards is None else list_parts(self._fleet.sessions_of(shards))
        return list_parts(self._fleet.sessions_of(map_of(self._fleet)))

    def verify_checkpoint(self, name: str, *, timeout_s: float | None = None, partial: bool = False) -> Checkpoint:
        """Have the server verify the checksum of every file of a checkpoint.

        Args:
            name: name of the checkpoint.
            timeout_s: time limit in seconds; None: the client's default; `math.inf`: forever.
            partial: with several servers, whether parts may be missing; see `Checkpoint.missing`.

        Raises:
            CheckpointDamagedError: a file is corrupt; the message names it.
            CheckpointNotFoundError: the checkpoint does not exist, or parts of it are missing.
        """
        sessions = self._all_sessions()
        if sessions is None:
            return self._run(operations.verify_checkpoint(name, timeout_s=timeout_s))
        return verify_parts(sessions, name, timeout_s=timeout_s, is_partial=partial)

    @property
    def shards(self) -> Shards:
        """The servers over which tables are distributed, and changes to them."""
        return Shards(self._fleet)

    def _server_uids(self) -> set[bytes]:
        """Return the ids that the reachable servers drew when they started; internal, for `replay copy`."""
        return self._fleet.server_uids()

    def keep_alive(self, needed: object) -> None:
        """Hold a reference to an object for as long as this client or a table, writer or sampler of it exists."""
        self._session.connection.kept_alive.append(needed)

    def close(self) -> None:
        """Close all connections. Close writers and samplers first."""
        self._fleet.reports.send()
        for session in list(self._fleet.sessions.values()):
            session.close()

    def __enter__(self) -> ReplayClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        """Whether a server has a table with this name. Creates no shards."""
        shards = self._all_shards()
        if shards is not None:
            found = described(self._fleet, shards, str(name))
            return any(isinstance(each, TableDescription) for each in found.values())
        try:
            self._run(operations.describe(str(name)))
        except TableNotFoundError:
            return False
        return True

    def __getitem__(self, name: str) -> Table:
        """Open an existing table, like `table`."""
        return self.table(name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of all tables, sorted."""
        return iter([table.name for table in self.tables()])

    def __copy__(self) -> ReplayClient:
        return copy.deepcopy(self)  # with a separate connection: closing one leaves the other open

    def _all_sessions(self) -> dict[int, Session] | None:
        """Return the sessions to all servers by the ids of their shards; None: there is only one."""
        shards = self._all_shards()
        return None if shards is None else self._fleet.sessions_of(shards)

    def _server_count(self) -> int:
        """Return over how many servers a table is distributed that is created now."""
        shards = self._all_shards()
        return 1 if shards is None else len(shards.in_use)

    def _all_shards(self) -> ShardMap | None:
        return map_of(self._fleet) if self._has_several else self._fleet.current()

    def _run(self, operation: Operation[T]) -> T:
        if self._has_several:
            expected = "one server for this call; create a client of each"
            raise InvalidArgumentError.of_field("address", expected, self.address)
        return self._session.connection.run(operation)


def _split(address: str) -> list[str]:
    """Split several addresses at the commas; blanks around these do not matter. One address stays as it is."""
    if not isinstance(address, str) or "," not in address:
        return [address]
    return [each.strip(" ") for each in address.split(",")]
