"""Calls to all servers of a service at once, such as for statistics."""

from __future__ import annotations

import logging

from replay_proto.v1 import replay_pb2

from replay_client._operations import server as operations
from replay_client._shards.map_clashes import newest_map
from replay_client._shards.merged import merged_description, merged_stats, merged_table_stats
from replay_client._transport.address import address_order
from replay_client._transport.call import Operation
from replay_client.errors import TableNotFoundError
from replay_client.results.description import TableDescription
from replay_client.results.shards import Shard, ShardMap
from replay_client.results.stats import Stats, TableStats
from replay_client.sync.shards.servers.asking import ask_all
from replay_client.sync.shards.servers.fleet import Fleet

log = logging.getLogger(__name__)


def map_of(fleet: Fleet) -> ShardMap:
    """Return the newest map. If there is none yet, return a map of the given addresses, without sending it."""
    given = enumerate(sorted(fleet.seeds, key=address_order))
    return fleet.current() or ShardMap(b"", 0, tuple(Shard(number, address, "active") for number, address in given))


def stats_of_all(fleet: Fleet, shards: ShardMap) -> Stats:
    """Fetch the statistics of all servers. A server that has lost its tables and its map counts as away.

    Raises:
        ServerUnavailableError: no server is reachable.
    """
    while True:
        found = ask_all(fleet.sessions_of(shards), operations.stats_message)
        known = {shard_id: stats for shard_id, stats in found.items() if stats.HasField("shards")}
        newest = newest_map(
            [(f"shard {shard_id}", ShardMap.from_proto(stats.shards)) for shard_id, stats in known.items()]
        )
        if newest is None or newest.version <= shards.version:
            return merged_stats(shards, known or found)
        shards = newest


def table_stats_of_all(fleet: Fleet, shards: ShardMap, name: str) -> TableStats:
    """Fetch the statistics of all shards of a table.

    Raises:
        ServerUnavailableError: no server is reachable.
        TableNotFoundError: no server has the table.
    """

    def of_shard() -> Operation[replay_pb2.TableStats | TableNotFoundError]:
        try:
            stats = yield from operations.stats_message(name)
        except TableNotFoundError as error:  # the server was added just now
            return error
        return stats.tables[0]

    found = ask_all(fleet.sessions_of(shards), of_shard)
    there = {shard_id: each for shard_id, each in found.items() if isinstance(each, replay_pb2.TableStats)}
    if not there:
        raise next(each for each in found.values() if isinstance(each, TableNotFoundError))
    return merged_table_stats(there, shards)


def tables_of_all(fleet: Fleet, shards: ShardMap) -> list[TableDescription]:
    """Describe the tables of all servers, sorted by name; warn of servers that are away.

    Raises:
        ServerUnavailableError: no server is reachable.
    """
    sessions = fleet.sessions_of(shards)
    found = ask_all(sessions, operations.list_tables)
    for shard_id in sorted(sessions.keys() - found):
        log.warning("shard %d at %s is away: rows not counted", shard_id, sessions[shard_id].options.address)
    by_name: dict[str, list[TableDescription]] = {}
    for descriptions, _ in found.values():
        for description in descriptions:
            by_name.setdefault(description.name, []).append(description)
    return [merged_description(parts) for _, parts in sorted(by_name.items())]
