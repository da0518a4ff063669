"""The servers of a service over which its tables are distributed.

Administrators who cannot reach the same servers can each change the map. The newer map then lacks the other's change,
and so its ancestors lack the id of the other map.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Final, Literal, Self

from replay_proto.v1 import replay_pb2

MOST_ANCESTORS: Final = 256
"""A server or client that missed more changes than these refuses the newest map, too."""
ShardState = Literal["active", "draining", "lost", "retired"]
"""``active``: gets rows and is drawn from. ``draining``: is only drawn from. ``lost``: will not come back. ``retired``:
was removed on purpose, after it had been draining."""

STATES: Final[dict[ShardState, replay_pb2.ShardState.ValueType]] = {
    "active": replay_pb2.SHARD_STATE_ACTIVE,
    "draining": replay_pb2.SHARD_STATE_DRAINING,
    "lost": replay_pb2.SHARD_STATE_LOST,
    "retired": replay_pb2.SHARD_STATE_RETIRED,
}
_ID_BYTES: Final = 16
_NAMES: Final = {value: name for name, value in STATES.items()}


@dataclass(frozen=True)
class LostRows:
    """The rows of a table that were lost with a shard."""

    table: str
    """Name of the table."""
    table_uids: tuple[bytes, ...]
    """Uids of the table's other shards at that time. A later table with this name has other uids."""
    size: int
    """Rows that the shard had."""
    inserted: int
    """Rows ever inserted into the shard."""


@dataclass(frozen=True)
class Shard:
    """One server of the service."""

    id: int
    """0 to 32767: identifies the server with its current tables; never reused."""
    address: str
    """Where clients reach it."""
    state: ShardState
    """Whether it gets rows, and whether rows are drawn from it."""
    lost_rows: tuple[LostRows, ...] = ()
    """For a lost shard: the rows that it had, as far as clients knew."""


@dataclass(frozen=True)
class ShardMap:
    """All servers of the service. Each server keeps a copy of this map, and the copy with the newest version counts."""

    uid: bytes
    """16 random bytes that distinguish services."""
    version: int
    """Increases with each change, from 1."""
    shards: tuple[Shard, ...]
    """Ascending by id."""
    id: bytes = b""
    """16 random bytes of this version of the map; empty if an earlier version of the service made it."""
    ancestors: tuple[bytes, ...] = ()
    """Ids of the maps that it was made from, newest first, at most 256."""

    @classmethod
    def first(cls, shards: tuple[Shard, ...]) -> Self:
        """Make the first map of a service."""
        return cls(secrets.token_bytes(_ID_BYTES), 1, shards, secrets.token_bytes(_ID_BYTES))

    def with_shards(self, shards: tuple[Shard, ...]) -> Self:
        """Make the next map from this one."""
        ancestors = (self.id, *self.ancestors)[:MOST_ANCESTORS] if self.id else ()
        return replace(
            self, version=self.version + 1, shards=shards, id=secrets.token_bytes(_ID_BYTES), ancestors=ancestors
        )

    @property
    def in_use(self) -> tuple[Shard, ...]:
        """The shards that are neither lost nor retired."""
        return tuple(shard for shard in self.shards if shard.state in ("active", "draining"))

    @classmethod
    def from_proto(cls, message: replay_pb2.ShardMap) -> Self:
        """Convert a message."""
        shards = tuple(
            Shard(each.id, each.address, _NAMES.get(each.state, "draining"), tuple(map(_lost, each.lost_rows)))
            for each in message.shards
        )
        return cls(message.uid, message.version, shards, message.id, tuple(message.ancestors))

    def to_proto(self) -> replay_pb2.ShardMap:
        """Convert to a message."""
        shards = [
            replay_pb2.Shard(
                id=each.id,
                address=each.address,
                state=STATES[each.state],
                lost_rows=[replay_pb2.LostRows(**vars(lost)) for lost in each.lost_rows],
            )
            for each in self.shards
        ]
        return replay_pb2.ShardMap(
            uid=self.uid, version=self.version, shards=shards, id=self.id, ancestors=self.ancestors
        )


def is_made_from(newer: ShardMap, older: ShardMap) -> bool:
    """Whether a map is another one, or was made from it. Older maps without an id count as its ancestors."""
    if newer.version == older.version:
        return newer == older
    return not older.id or older.id in newer.ancestors


def _lost(message: replay_pb2.LostRows) -> LostRows:
    return LostRows(message.table, tuple(message.table_uids), message.size, message.inserted)
