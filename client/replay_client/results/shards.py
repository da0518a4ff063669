"""The servers of a service whose tables are distributed over several servers."""

from __future__ import annotations

from dataclasses import dataclass

from replay_proto.shard_maps import LostRows as LostRows
from replay_proto.shard_maps import Shard as Shard
from replay_proto.shard_maps import ShardMap as ShardMap
from replay_proto.shard_maps import ShardState as ShardState


@dataclass(frozen=True)
class ServerShards:
    """What a server says about itself and the service."""

    map: ShardMap | None
    """Its shard map; None: it has none."""
    server_uid: bytes
    """16 random bytes of its process; empty in versions before 0.2."""
    version: str
    """Its version; empty in versions before 0.2."""
