"""Chooses the newest of several servers' shard maps, and refuses different maps of one version.

Two administrators who cannot reach the same servers can each change the map, which then has the same version twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from replay_client.errors import InvalidArgumentError
from replay_client.results.shards import ShardMap


def newest_map(maps: Iterable[tuple[str, ShardMap]]) -> ShardMap | None:
    """Return the newest map; None if there is none.

    Args:
        maps: each map with the server that has it.

    Raises:
        InvalidArgumentError: two servers have different maps of the newest version.
    """
    found = list(maps)
    if not found:
        return None
    newest = max(found, key=lambda each: each[1].version)
    for each in found:
        refuse_clash(newest, each)
    return newest[1]


def refuse_clash(one: tuple[str, ShardMap], other: tuple[str, ShardMap]) -> None:
    """Refuse two different maps of one version.

    Raises:
        InvalidArgumentError: they are.
    """
    if one[1].version == other[1].version and one[1] != other[1]:
        raise InvalidArgumentError.of_field(
            "address",
            f"servers with the same shard map of version {one[1].version}; two people have changed it without reaching "
            "each other's servers: stop one of these servers, copy the other's shards.json into its --data-dir, and "
            "repeat the change that is lost",
            f"{one[0]} with {_shown(one[1])}, and {other[0]} with {_shown(other[1])}",
        )


def _shown(shards: ShardMap) -> str:
    return ", ".join(f"{shard.id} at {shard.address} ({shard.state})" for shard in shards.shards)
