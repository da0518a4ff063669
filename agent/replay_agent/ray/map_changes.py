"""Determines from the keepers' reports what to change in the shard map. Uses neither Ray nor I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from replay_client.results.shards import ShardMap


class Seen(NamedTuple):
    """A keeper whose server is ready."""

    number: int
    """number of the keeper"""
    address: str
    """where clients reach its server"""
    shard_id: int | None
    """id in the shard map, if the keeper has stored one beside the tables"""
    is_empty: bool
    """whether the keeper has no shard id and its server has no shard map"""


@dataclass(frozen=True)
class Assign:
    """Tell a keeper the id of its shard."""

    number: int
    shard_id: int


@dataclass(frozen=True)
class Renew:
    """Let a keeper restart with empty tables, because its shard was given up."""

    number: int


@dataclass(frozen=True)
class Lose:
    """Give up a shard."""

    shard_id: int


@dataclass(frozen=True)
class Move:
    """Record the new address of a shard, so that clients find it."""

    shard_id: int
    address: str


@dataclass(frozen=True)
class Add:
    """Add an empty shard, with a new id."""

    address: str


Change = Assign | Renew | Lose | Move | Add


def changes(shards: ShardMap, seen: Sequence[Seen], expired: Collection[int]) -> Iterator[Change]:
    """Yield the changes that the map needs.

    Args:
        shards: the newest map.
        seen: keepers whose servers are ready.
        expired: ids of shards that have been unreachable for too long.
    """
    states = {shard.id: shard.state for shard in shards.shards}
    by_address = {shard.address: shard.id for shard in shards.in_use}
    addresses = {shard_id: address for address, shard_id in by_address.items()}
    for keeper in seen:
        known = by_address.get(keeper.address)
        if keeper.shard_id is not None:
            if states.get(keeper.shard_id) == "lost":
                yield Renew(keeper.number)
            elif keeper.shard_id in addresses and addresses[keeper.shard_id] != keeper.address:
                yield Move(keeper.shard_id, keeper.address)
        elif known is None:
            yield Add(keeper.address)
        elif keeper.is_empty:  # The storage is gone, but the new server has the old address.
            yield Lose(known)
        else:
            yield Assign(keeper.number, known)
    for shard_id in expired:
        if shard_id in addresses:
            yield Lose(shard_id)
