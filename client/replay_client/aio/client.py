"""A client of one server for asyncio; see `replay_client.sync.client`.

It refuses servers whose tables are distributed over several servers, rather than show a part of them.

async with aio.ReplayClient("localhost:50051") as client:
    table = await client.table("cartpole")
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NoReturn, TypeVar

from replay_proto.schema import Column
from replay_proto.steps import Derived, Item

from replay_client._operations import server as operations
from replay_client._operations.server import IfExists
from replay_client._transport.attempts import FIRST_CONTACT_S
from replay_client._transport.call import Operation
from replay_client._transport.connection import LinkOptions
from replay_client.aio._connection import Connection
from replay_client.aio.table import Table
from replay_client.errors import InvalidArgumentError, ShardsChangedError
from replay_client.results.checkpoints import Checkpoint
from replay_client.results.description import TableDescription
from replay_client.results.shards import ShardMap
from replay_client.results.stats import Stats
from replay_client.security import Tls
from replay_client.sync.client import DEFAULT_TIMEOUT_S

T = TypeVar("T")

_ONE_SERVER: Final = "one server; for tables on several servers, use replay_client.ReplayClient"


class ReplayClient:
    """A connection to a replay server, for one event loop; see `replay_client.ReplayClient`."""

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
        """Do not connect yet. For the arguments and errors, see `replay_client.ReplayClient`.

        With ``same_host``, on the server's host, rows of batches are copied from its files, and writers and samplers
        use a unix-domain socket; single calls use gRPC.
        """
        if isinstance(address, str) and "," in address:
            raise InvalidArgumentError.of_field("address", _ONE_SERVER, address)
        self._options = LinkOptions.checked(
            address, timeout_s=timeout_s, wait_for_server_s=wait_for_server_s, tls=tls, same_host=same_host
        )
        self._connection = Connection(self._options, token)

    @property
    def address(self) -> str:
        """The server's address, as given."""
        return self._options.address

    def __repr__(self) -> str:
        return f"<aio.ReplayClient of {self.address}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client of an event loop cannot be pickled or copied; create a client there")

    async def create_table(
        self,
        name: str,
        *,
        columns: Mapping[str, Column | Derived],
        capacity: int,
        backend: str = "sum_tree",
        steps: Item | None = None,
        seed: int | None = None,
        if_exists: IfExists | None = None,
        min_size: float | None = None,
        samples_per_insert: float | None = None,
        error_buffer: float | tuple[float, float] | None = None,
        **parameters: float | None,
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
            parameters=parameters,
        )
        try:
            description, created = await self._run(operations.create_table(config, if_exists))
        except ShardsChangedError:
            await self._check_alone(name)
            raise
        return Table(self._connection, self._options, description, created=created)

    async def table(self, name: str) -> Table:
        """Open an existing table; see `replay_client.ReplayClient.table`."""
        description, shards = await self._run(operations.open_table(name))
        _check_is_all(shards, name)
        return Table(self._connection, self._options, description)

    async def tables(self) -> list[TableDescription]:
        """List the descriptions of all tables, sorted by name."""
        tables, shards = await self._run(operations.list_tables())
        _check_is_all(shards)
        return tables

    async def drop_table(self, name: str) -> None:
        """Drop the table with this name; see `replay_client.ReplayClient.drop_table`."""
        await self._check_alone(name)
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
        await self._check_alone()
        return await self._run(operations.checkpoint(tables, series=series, keep=keep, timeout_s=timeout_s))

    async def checkpoints(self) -> list[Checkpoint]:
        """List the server's checkpoints, oldest first; see `replay_client.ReplayClient.checkpoints`."""
        return await self._run(operations.list_checkpoints())

    async def verify_checkpoint(self, name: str, *, timeout_s: float | None = None) -> Checkpoint:
        """Have the server verify a checkpoint; see `replay_client.ReplayClient.verify_checkpoint`."""
        return await self._run(operations.verify_checkpoint(name, timeout_s=timeout_s))

    async def close(self) -> None:
        """Close the connection. Close writers and samplers first."""
        await self._connection.close()

    async def __aenter__(self) -> ReplayClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _check_alone(self, name: str = "") -> None:
        """Ask the server for other servers; raise like `_check_is_all`."""
        server = await self._run(operations.get_shards(timeout_s=self._connection.timeout_s))
        _check_is_all(server.map, name)

    async def _run(self, operation: Operation[T]) -> T:
        return await self._connection.run(operation)


def _check_is_all(shards: ShardMap | None, name: str = "") -> None:
    """Check that a server has whole tables.

    Raises:
        InvalidArgumentError: it has shards of them; the message names all servers.
    """
    if shards is not None:
        servers = ", ".join(shard.address for shard in shards.in_use)
        got = f"table {name!r}, on {servers}" if name else servers
        raise InvalidArgumentError.of_field("name" if name else "address", _ONE_SERVER, got)
