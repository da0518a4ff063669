"""Calls to all servers of a service at once, such as for statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from replay_client._operations import server as operations
from replay_client._shards.merged_description import merged_description
from replay_client._shards.merged_stats import merged_stats, merged_table_stats
from replay_client._transport.call import Operation
from replay_client._transport.server_link import ServerLink
from replay_client.errors import DeadlineExceededError, ServerUnavailableError
from replay_client.results.description import TableDescription
from replay_client.results.shards import Shard, ShardMap
from replay_client.results.stats import Stats, TableStats
from replay_client.sync.shards.fleet import Fleet

T = TypeVar("T")

_ASK_S: Final = 2.0
"""Time limit for each server: the others have most of the answer."""


def ask_all(links: Mapping[int, ServerLink], call: Callable[[int], Operation[T]]) -> dict[int, T]:
    """Make a call to the server of each shard at the same time; return the answers, without those of servers away.

    Raises:
        ServerUnavailableError: no server is reachable.
        ReplayError: a server refused the call.
    """

    def ask(shard_id: int) -> T | Exception:
        try:
            return links[shard_id].connection.run(call(shard_id))
        except (ServerUnavailableError, DeadlineExceededError) as error:
            return error

    with ThreadPoolExecutor(len(links)) as pool:
        answers = dict(zip(links, pool.map(ask, links), strict=True))
    found = {shard_id: answer for shard_id, answer in answers.items() if not isinstance(answer, Exception)}
    failures = [answer for answer in answers.values() if isinstance(answer, Exception)]
    if not found:
        raise failures[0]
    return found


def links_of(fleet: Fleet, shards: ShardMap) -> dict[int, ServerLink]:
    """Return the links to all servers in use, by the ids of their shards."""
    return {shard.id: fleet.link(shard.address) for shard in shards.in_use}


def map_of(fleet: Fleet) -> ShardMap:
    """Return the newest map; before there is one, a map of the given addresses, which no server gets."""
    given = tuple(Shard(number, address, "active") for number, address in enumerate(sorted(fleet.seeds)))
    return fleet.current() or ShardMap(b"", 0, given)


def stats_of_all(fleet: Fleet, shards: ShardMap) -> Stats:
    """Fetch the statistics of all servers. Servers that have lost their tables and their map count as away.

    Raises:
        ServerUnavailableError: no server is reachable.
    """
    while True:
        found = ask_all(links_of(fleet, shards), lambda _: operations.stats(timeout_s=_ASK_S))
        known = {shard_id: stats for shard_id, stats in found.items() if stats.shards is not None} or found
        newest = max((stats.shards for stats in known.values() if stats.shards), key=_version, default=shards)
        if newest.version <= shards.version:
            return merged_stats(shards, known)
        shards = newest


def table_stats_of_all(links: Mapping[int, ServerLink], name: str) -> TableStats:
    """Fetch the statistics of all shards of a table.

    Raises:
        ServerUnavailableError: no server is reachable.
        TableNotFoundError: a server has no such table.
    """
    found = ask_all(links, lambda _: operations.stats(name, timeout_s=_ASK_S))
    away = [shard_id for shard_id in links if shard_id not in found]
    return merged_table_stats({shard_id: stats.tables[name] for shard_id, stats in found.items()}, away)


def tables_of_all(fleet: Fleet, shards: ShardMap) -> list[TableDescription]:
    """Describe the tables of all servers, sorted by name.

    Raises:
        ServerUnavailableError: no server is reachable.
    """
    found = ask_all(links_of(fleet, shards), lambda _: operations.list_tables(timeout_s=_ASK_S))
    by_name: dict[str, list[TableDescription]] = {}
    for descriptions, _ in found.values():
        for description in descriptions:
            by_name.setdefault(description.name, []).append(description)
    return [merged_description(parts) for _, parts in sorted(by_name.items())]


def _version(shards: ShardMap) -> int:
    return shards.version
