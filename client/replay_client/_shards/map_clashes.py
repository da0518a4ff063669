"""Finds the newest of several shard maps, and refuses maps that clash."""

from __future__ import annotations

from collections.abc import Iterable

from replay_proto.shard_maps import is_made_from

from replay_client.errors import InvalidArgumentError
from replay_client.results.shards import ShardMap


def newest_map(maps: Iterable[tuple[str, ShardMap]]) -> ShardMap | None:
    """Return the newest map; None if there is none.

    Args:
        maps: each map with the server that has it.

    Raises:
        InvalidArgumentError: a server has a map that the newest one was not made from.
    """
    found = list(maps)
    if not found:
        return None
    newest = max(found, key=lambda each: each[1].version)
    for each in found:
        refuse_clash(newest, each)
    return newest[1]


def refuse_clash(one: tuple[str, ShardMap], other: tuple[str, ShardMap]) -> None:
    """Refuse two maps of which neither was made from the other.

    Two administrators who cannot reach the same servers can each change the map. The newer map then lacks a change.

    Raises:
        InvalidArgumentError: they are.
    """
    older, newer = sorted((one, other), key=lambda each: each[1].version)
    if not is_made_from(newer[1], older[1]):
        raise InvalidArgumentError.of_field(
            "address",
            "servers with one shard map; two people have changed it without reaching each other's servers: stop one of "
            "these servers, copy the other's shards.json into its --data-dir, and repeat the change that is lost",
            f"{one[0]} with {_shown(one[1])}, and {other[0]} with {_shown(other[1])}",
        )


def _shown(shards: ShardMap) -> str:
    servers = ", ".join(f"{shard.id} at {shard.address} ({shard.state})" for shard in shards.shards)
    return f"version {shards.version} of {servers}"
