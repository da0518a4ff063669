"""The servers of a service that has several: which they are, and changes to them.

client.shards.set(["a:50051", "b:50051"])
client.shards.mark(1, state="draining")
client.shards.map()
"""

from __future__ import annotations

from collections.abc import Sequence

from replay_client._transport.address import checked_address, checked_addresses
from replay_client.results.shards import ShardMap, ShardState
from replay_client.sync.shards.servers.fleet import Fleet
from replay_client.sync.shards.servers.members import create_missing
from replay_client.sync.shards.servers.removal import retire


class Shards:
    """The servers over which tables are distributed; see `ReplayClient.shards`.

    Changes raise `ShardsChangedError` if another client has changed the servers meanwhile, and `PermissionDeniedError`
    if the token lacks the right ``admin`` on all tables.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def map(self) -> ShardMap | None:
        """Return the servers over which tables are distributed; None: there is only one server."""
        return self._fleet.current()

    def set(self, addresses: Sequence[str]) -> ShardMap:
        """Distribute tables over these servers. Known servers keep their ids; new servers get new ids.

        Rows do not move; new rows go to the emptier servers. The call creates the shards of all tables on new
        servers, and running clients use these shards within a second.

        Raises:
            InvalidArgumentError: no address is given, one is malformed or given twice, or the address of a server in
                use is missing.
        """
        shards = self._fleet.set_addresses(checked_addresses(addresses))
        create_missing(self._fleet, shards)
        return shards

    def mark(self, shard_id: int, *, state: ShardState) -> ShardMap:
        """Change the state of one server.

        Args:
            shard_id: the id of its shard.
            state: ``"draining"``: it gets no new rows. ``"lost"``: it will not come back; its rows are given up,
                and its id is never used again. ``"retired"``: like ``"lost"``, but for a server that is removed on
                purpose; see `retire`. ``"active"``: it gets rows again.

        Raises:
            InvalidArgumentError: there is no such shard or state, the shard is already lost or retired, or it is the
                only one in use and would be lost or retired.
        """
        return self._fleet.mark(shard_id, state)

    def retire(self, shard_id: int) -> ShardMap:
        """Remove a draining server from the service if its rows are no longer needed.

        Rows are no longer needed if, for each table, all active shards are full and have only newer rows. Afterwards,
        the server may stop. To give up its rows earlier, mark the shard as ``"retired"``.

        Raises:
            InvalidArgumentError: the shard is not draining, or rows are still needed; the message says which.
            ServerUnavailableError: a server cannot be reached.
        """
        return retire(self._fleet, shard_id)

    def move(self, shard_id: int, *, address: str) -> ShardMap:
        """Tell clients the new address of a server that now runs elsewhere, with the same tables.

        Args:
            shard_id: the id of its shard, which stays the same.
            address: its new address.

        Raises:
            InvalidArgumentError: there is no such shard, it is lost or retired, or the address is malformed or in use,
                or leads to a server that has not kept the shard map, or that of another service or shard. A server of
                a shard that is lost or retired is noticed at its last address, or if it has the first shard of a table.
            ServerUnavailableError: the server at the new address is away.
        """
        return self._fleet.move(shard_id, checked_address(address))
