"""Resets and drops tables on several servers, some of which may be away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from replay_client._operations import server as operations
from replay_client._transport.call import Operation
from replay_client.errors import ServerUnavailableError, TableNotFoundError
from replay_client.results.description import TableDescription
from replay_client.results.shards import Shard, ShardMap
from replay_client.sync.shards.servers.asking import AWAY, ask_all
from replay_client.sync.shards.servers.fleet import Fleet

T = TypeVar("T")

Uids = Mapping[int, bytes]
"""Uids of a table's shards that the caller has opened, by id of the shard."""


def reset_all(fleet: Fleet, shards: ShardMap, name: str, opened: Uids) -> int:
    """Remove the rows of all shards of a table, and return their number; see `ShardedTable.reset`."""
    uids, away = _found(fleet, shards, name, opened)
    if away:
        raise _unavailable(name, away, "so no rows were removed; reset")
    removed, away = _run_on(fleet, uids, name, operations.reset_table)
    if away:
        raise _unavailable(name, away, f"and {sum(removed.values()):,} rows were removed on the others; reset")
    return sum(removed.values())


def drop_all(fleet: Fleet, shards: ShardMap, name: str, opened: Uids) -> None:
    """Drop a table on all servers that are not away; see `ShardedTable.drop`."""
    uids, away = _found(fleet, shards, name, opened)
    _, failed = _run_on(fleet, uids, name, operations.drop_table)
    if away or failed:
        raise _unavailable(name, [*away, *failed], "and the table was dropped on the others; drop")


def _found(fleet: Fleet, shards: ShardMap, name: str, opened: Uids) -> tuple[dict[Shard, bytes], list[Shard]]:
    """Ask all servers for their tables of this name; return their uids, and the shards whose servers are away.

    Raises:
        TableNotFoundError: all servers answer, and none has such a table.
        ServerUnavailableError: no server is reachable.
    """

    def look() -> Operation[TableDescription | TableNotFoundError]:
        try:
            return (yield from operations.describe(name))
        except TableNotFoundError as error:
            return error

    found = ask_all(fleet.links_of(shards), look)
    there = {shard: found[shard.id] for shard in shards.in_use if shard.id in found}
    uids = {
        shard: opened.get(shard.id, each.uid) for shard, each in there.items() if isinstance(each, TableDescription)
    }
    away = [shard for shard in shards.in_use if shard not in there]
    for refusal in there.values():
        if isinstance(refusal, TableNotFoundError) and not uids and not away:
            raise refusal
    return uids, away


def _run_on(
    fleet: Fleet, uids: Mapping[Shard, bytes], name: str, operation: Callable[[str, bytes], Operation[T]]
) -> tuple[dict[Shard, T], list[Shard]]:
    """Run an operation on each shard's table. Return the results, and the shards whose servers have gone away."""
    results: dict[Shard, T] = {}
    away = []
    for shard, uid in uids.items():
        with suppress(TableNotFoundError):  # another client has dropped it just now
            try:
                results[shard] = fleet.link(shard.address).connection.run(operation(name, uid))
            except AWAY:
                away.append(shard)
    return results, away


def _unavailable(name: str, away: Sequence[Shard], what_now: str) -> ServerUnavailableError:
    servers = ", ".join(f"shard {shard.id} at {shard.address}" for shard in away)
    return ServerUnavailableError(
        f"table {name!r} needs all its servers, but these are away: {servers}; {what_now} it again when they are back, "
        f"or give them up with `replay shards lost {away[0].id}`"
    )
