"""Results of making copies: checkpoints of a server; exports, imports and copies of tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from replay_proto.v1 import replay_pb2

from replay_client.results import mirrored
from replay_client.results.shards import ShardMap


@dataclass(frozen=True)
class CheckpointTable:
    """A table in a checkpoint."""

    name: str
    """Name of the table."""
    uid: bytes
    """16 random bytes that distinguish the table from others with the same name."""
    size: int
    """Rows in the checkpoint."""
    inserted: int
    """Rows ever inserted, at the time of the checkpoint."""
    left_out: int
    """Number of oldest rows left out, because inserts overwrote them before they were copied."""


@dataclass(frozen=True)
class Checkpoint:
    """A copy of tables in a directory of the server's host."""

    name: str
    """Series and number, such as ``checkpoint-000007``."""
    directory: str
    """Path on the server's host, for ``replay-server --restore``."""
    taken_s: float
    """Time of the checkpoint, in seconds since 1970 (UTC)."""
    bytes: int
    """Total size of the files, in bytes."""
    tables: Mapping[str, CheckpointTable]
    """Tables in the checkpoint, by name. With several servers, their rows are sums over the parts."""
    shards: ShardMap | None = None
    """The servers over which tables were distributed; None: only one server."""
    parts: Mapping[int, Checkpoint] = field(default_factory=dict)
    """With several servers, the part of each server by shard id. Each part is in a directory of its own."""
    damage: str = ""
    """Why it cannot be read; empty: it can. If it cannot, only its name and directory are known, and the other fields
    are empty or 0. Other files than its manifest are only checked by `ReplayClient.verify_checkpoint`."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Ids of the shards whose parts are missing."""
        in_use = self.shards.in_use if self.shards is not None and self.parts else ()
        return tuple(shard.id for shard in in_use if shard.id not in self.parts)

    @classmethod
    def from_proto(cls, message: replay_pb2.CheckpointDescription) -> Checkpoint:
        """Convert a message."""
        tables = {table.name: mirrored(CheckpointTable, table, uid=table.table_uid) for table in message.tables}
        shards = ShardMap.from_proto(message.shards) if message.HasField("shards") else None
        return mirrored(cls, message, tables=tables, shards=shards, parts={})


@dataclass(frozen=True)
class Exported:
    """Rows that were written to a file."""

    rows: int
    """Number of rows in the file."""
    inserted: int
    """Rows ever inserted into the table when the export began. Rows inserted later are not in the file."""
    overtaken: int
    """Number of rows that were live at that time, but were evicted or reset before they could be read."""


@dataclass(frozen=True)
class Loaded:
    """Rows that were inserted from a file."""

    rows: int
    """Number of rows inserted."""
    first_key: int | None
    """Key of the first row; None if the file has no rows. Later rows have the next keys, unless others insert, too."""


@dataclass(frozen=True)
class Copied:
    """A table that was copied to another service."""

    table: str
    """Name of the table."""
    rows: int
    """Live rows of the source when the copy began."""
    found: int
    """Number of them that an earlier run had copied."""
    overtaken: int
    """Number of them that the source evicted or reset before they could be read; they are missing."""
    evicted: int
    """Number of them, the oldest, that did not fit into their servers' shares of the capacity and were evicted."""
