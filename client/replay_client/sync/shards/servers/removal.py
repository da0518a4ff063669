"""Resets and drops tables on several servers, some of which may be away, and retires servers that are not needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from replay_client._operations import server as operations
from replay_client._transport.call import Operation
from replay_client.errors import InvalidArgumentError, ServerUnavailableError, TableNotFoundError
from replay_client.results.description import TableDescription
from replay_client.results.shards import Shard, ShardMap
from replay_client.results.stats import Stats, TableStats
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

    def poll() -> Operation[TableDescription | TableNotFoundError]:
        try:
            return (yield from operations.describe(name))
        except TableNotFoundError as error:
            return error

    found = ask_all(fleet.sessions_of(shards), poll)
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
                results[shard] = fleet.session(shard.address).connection.run(operation(name, uid))
            except AWAY:
                away.append(shard)
    return results, away


def _unavailable(name: str, away: Sequence[Shard], what_now: str) -> ServerUnavailableError:
    servers = ", ".join(f"shard {shard.id} at {shard.address}" for shard in away)
    return ServerUnavailableError(
        f"table {name!r} needs all its servers, but these are away: {servers}; {what_now} it again when they are back, "
        f"or give them up with `replay shards lost {away[0].id}`"
    )


def retire(fleet: Fleet, shard_id: int) -> ShardMap:
    """Retire a draining shard whose rows are no longer needed; see `ReplayClient.shards.retire`.

    In a table on one server, the oldest rows are evicted first. So the rows of a draining shard are needed until all
    other shards are full and have only newer rows. By then, a single table would have evicted them.
    """
    shards = fleet.current()
    shard = next((each for each in shards.in_use if each.id == shard_id), None) if shards is not None else None
    if shards is None or shard is None or shard.state != "draining":
        draining = [str(each.id) for each in shards.in_use if each.state == "draining"] if shards is not None else []
        raise InvalidArgumentError.of_field("shard", f"a draining one ({', '.join(draining) or 'none'})", str(shard_id))
    others = [each for each in shards.in_use if each.state == "active"]
    stats = {each: _stats(fleet, each) for each in (shard, *others)}
    for name, table in stats[shard].tables.items():
        for other in others:
            needed = _why_needed(table, stats[other], name)
            if needed:
                raise InvalidArgumentError.of_field(
                    "shard",
                    "one whose rows are older than all rows of the others",
                    f"{table.size:,} rows of table {name!r} on {shard.address}; on {other.address}, {needed}",
                )
    return fleet.mark(shard_id, "retired")


def _stats(fleet: Fleet, shard: Shard) -> Stats:
    return fleet.session(shard.address).connection.run(operations.stats())


def _why_needed(draining: TableStats, others: Stats, name: str) -> str:
    """Return why the rows of a draining shard's table are still needed, or an empty string if they are not.

    ``others`` are the statistics of another server.
    """
    if not draining.size:
        return ""
    other = others.tables.get(name)
    if other is None or other.size < other.capacity:
        return "the table is not full yet"
    oldest_s, newest_s = max(other.ages_s.values()), min(draining.ages_s.values())
    if oldest_s >= others.server.uptime_s:
        return "there are rows from before the server's start, whose age is unknown"
    if newest_s <= oldest_s:
        return f"the oldest row is {oldest_s:.0f} s old, and the newest of these {newest_s:.0f} s"
    return ""
