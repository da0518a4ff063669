"""Decides when a draining server is no longer needed.

In a table on one server, the oldest rows are evicted first. So the rows of a draining shard are needed until all other
shards are full and have only newer rows. By then, a single table would have evicted them.
"""

from __future__ import annotations

from replay_client._operations import server as operations
from replay_client.errors import InvalidArgumentError
from replay_client.results.shards import Shard, ShardMap
from replay_client.results.stats import Stats, TableStats
from replay_client.sync.shards.servers.fleet import Fleet


def retire(fleet: Fleet, shard_id: int) -> ShardMap:
    """Retire a draining shard whose rows are no longer needed; see `ReplayClient.shards.retire`."""
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
    return fleet.link(shard.address).connection.run(operations.stats())


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
