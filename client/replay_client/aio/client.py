"""A client of one server for asyncio; see `replay_client.sync.client`.

It raises an error if tables are distributed over several servers, because each server then has only a part of a table.

async with aio.ReplayClient("localhost:50051") as client:
    table = await client.table("cartpole")
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, Unpack, overload

from replay_proto.schema import Column
from replay_proto.steps import Derived, Item

from replay_client._learning.handle import check_device
from replay_client._operations import server as operations
from replay_client._operations.mixing import Mixture, checked_sizes
from replay_client._operations.server import IfExists
from replay_client._transport.attempts import FIRST_CONTACT_S
from replay_client._transport.call import Operation, time_limit
from replay_client._transport.connection import SessionOptions
from replay_client.aio._session import LoopSession
from replay_client.aio.channels import Channels
from replay_client.aio.mixed_sampler import MixedSampler
from replay_client.aio.table import Table
from replay_client.batch import Published
from replay_client.draws import DEFAULT_BETA, DrawMode, Prefetch, SamplerOptions, WeightNorm
from replay_client.errors import InvalidArgumentError, ShardsChangedError
from replay_client.results.copies import Checkpoint
from replay_client.results.description import TableDescription
from replay_client.results.shards import ShardMap
from replay_client.results.stats import Stats
from replay_client.security import Tls, Token
from replay_client.sync.client import DEFAULT_TIMEOUT_S

if TYPE_CHECKING:
    from replay_client._learning.tensors import Device
    from replay_client.aio.tensors import MixedTensorSampler

T = TypeVar("T")

_ONE_SERVER: Final = "one server; for tables on several servers, use replay_client.ReplayClient"


class ReplayClient:
    """A connection to a replay server, for one event loop; see `replay_client.ReplayClient`."""

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
        """Create a client, which connects on its first call. See `replay_client.ReplayClient` for arguments and errors.

        With ``same_host``, if the server is on this host, rows of batches are copied from the server's files, and
        writers and samplers use a unix-domain socket. Single calls use gRPC.
        """
        if isinstance(address, str) and "," in address:
            raise InvalidArgumentError.of_field("address", _ONE_SERVER, address)
        options = SessionOptions.checked(
            address, timeout_s=timeout_s, wait_for_server_s=wait_for_server_s, tls=tls, same_host=same_host
        )
        self._session = LoopSession(options, token)
        self._channels = Channels()
        self._session.connection  # noqa: B018 - reads and validates TLS files

    @property
    def address(self) -> str:
        """The server's address, as given."""
        return self._session.options.address

    def __repr__(self) -> str:
        return f"<aio.ReplayClient of {self.address}>"

    async def create_table(
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
        """Create a table, or open an existing one; see `replay_client.ReplayClient.create_table`."""
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
        try:
            description, created = await self._run(operations.create_table(config, if_exists))
        except ShardsChangedError:
            await self._check_alone(name)
            raise
        return Table(self._session, description, created=created)

    async def table(self, name: str) -> Table:
        """Open an existing table; see `replay_client.ReplayClient.table`."""
        description, shards = await self._run(operations.open_table(name))
        _check_is_all(shards, name)
        return Table(self._session, description)

    async def load_parquet(
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
        """Create a table from a Parquet file; see `replay_client.ReplayClient.load_parquet`.

        A thread reads the file and inserts the rows. If the call is canceled, a table with some of the rows may remain.
        """
        await self._check_alone()
        client = self._session.blocking_client()
        load = partial(client.load_parquet, path, name=name, priorities=priorities, keys=keys)
        loaded = await self._session.in_thread(
            client, lambda: load(timeout_s=timeout_s, progress=progress, **config).describe()
        )
        return Table(self._session, loaded, created=True)

    async def publish(self, name: str, values: Any, *, timeout_s: float | None = None) -> int:
        """Publish state for other programs, and return its version; see `replay_client.ReplayClient.publish`.

        If the call is canceled, the state was published or not; readers never see a part of it.
        """
        return await self._channels.publish(self, name, values, timeout_s)

    async def latest(self, name: str, *, wait_newer: int | None = None, timeout_s: float | None = None) -> Published:
        """Read what was published last; see `replay_client.ReplayClient.latest`."""
        return await self._channels.latest(self, name, wait_newer, timeout_s)

    @overload
    async def mixed_sampler(
        self,
        batch_sizes: Mapping[str, int],
        *,
        device: None = ...,
        **options: Unpack[SamplerOptions],
    ) -> MixedSampler: ...

    @overload
    async def mixed_sampler(
        self,
        batch_sizes: Mapping[str, int],
        *,
        device: Device,
        **options: Unpack[SamplerOptions],
    ) -> MixedTensorSampler: ...

    async def mixed_sampler(
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
        """Open tables and create a sampler of them; see `replay_client.ReplayClient.mixed_sampler`."""
        check_device(device)
        sizes = checked_sizes(batch_sizes)
        tables = {name: await self.table(name) for name in sizes}
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
        from replay_client.aio.tensors import MixedTensorSampler  # torch is optional

        return MixedTensorSampler(sampler, device)

    async def tables(self) -> list[TableDescription]:
        """List the descriptions of all tables, sorted by name."""
        tables, shards = await self._run(operations.list_tables())
        _check_is_all(shards)
        return tables

    async def drop_table(self, name: str) -> None:
        """Drop the table with this name; see `replay_client.ReplayClient.drop_table`."""
        await self._check_alone(name)
        self._channels.forget(name)
        await self._run(operations.drop_table(name))

    async def stats(self) -> Stats:
        """Fetch statistics of the server and all tables; a cheap call."""
        stats = await self._run(operations.stats())
        _check_is_all(stats.shards)
        return stats

    async def checkpoint(
        self,
        tables: Iterable[str] = (),
        *,
        series: str | None = None,
        keep: int | None = None,
        timeout_s: float | None = None,
    ) -> Checkpoint:
        """Have the server write a checkpoint; see `replay_client.ReplayClient.checkpoint`.

        If the call is canceled, the server finishes the checkpoint anyway.
        """
        await self._check_alone(timeout_s=timeout_s)
        return await self._run(operations.checkpoint(tables, series=series, keep=keep, timeout_s=timeout_s))

    async def checkpoints(self) -> list[Checkpoint]:
        """List the server's checkpoints, oldest first; see `replay_client.ReplayClient.checkpoints`."""
        found, shards = await self._run(operations.list_checkpoints())
        _check_is_all(shards)
        return found

    async def verify_checkpoint(self, name: str, *, timeout_s: float | None = None) -> Checkpoint:
        """Have the server verify a checkpoint; see `replay_client.ReplayClient.verify_checkpoint`."""
        await self._check_alone(timeout_s=timeout_s)
        return await self._run(operations.verify_checkpoint(name, timeout_s=timeout_s))

    async def close(self) -> None:
        """Close the connection. Close writers and samplers first."""
        await self._session.close()

    async def __aenter__(self) -> ReplayClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __getitem__(self, name: str) -> Awaitable[Table]:
        """Open an existing table, like `table`: ``await client["cartpole"]``."""
        return self.table(name)

    async def __aiter__(self) -> AsyncIterator[str]:
        """Iterate over the names of all tables, sorted."""
        for table in await self.tables():
            yield table.name

    def __contains__(self, name: object) -> NoReturn:
        raise TypeError("`in` cannot wait for the server; use `async for name in client`")

    def __iter__(self) -> NoReturn:
        raise TypeError("use `async for name in client`")

    def __copy__(self) -> ReplayClient:
        return copy.deepcopy(self)  # with a separate connection: closing one leaves the other open

    async def _check_alone(self, name: str = "", timeout_s: float | None = None) -> None:
        """Ask the server whether it is the only one; raise like `_check_is_all`."""
        own_s = self._session.connection.timeout_s
        limit_s = time_limit("timeout_s", timeout_s, own_s) or own_s
        server = await self._run(operations.get_shards(timeout_s=min(limit_s, own_s)))
        _check_is_all(server.map, name)

    async def _run(self, operation: Operation[T]) -> T:
        return await self._session.connection.run(operation)


def _check_is_all(shards: ShardMap | None, name: str = "") -> None:
    """Raise `InvalidArgumentError` if a server has only shards of tables; the message names all servers."""
    if shards is not None:
        servers = ", ".join(shard.address for shard in shards.in_use)
        got = f"table {name!r}, on {servers}" if name else servers
        raise InvalidArgumentError.of_field("name" if name else "address", _ONE_SERVER, got)
