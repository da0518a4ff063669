"""The manifest of a checkpoint: a JSON file that describes all tables and files, with a checksum for each file."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay_server.errors import FatalError
from replay_server.storage.format import CHECKPOINT_MANIFEST_FILE, CHECKPOINT_VERSION, UID_BYTES
from replay_server.storage.ranges import BYTES, KEYS
from replay_server.storage.shard_map import ShardMap
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_state import TableState


class DamagedCheckpointError(FatalError):
    """A checkpoint file is corrupt."""

    def __init__(self, path: Path, fault: str) -> None:
        super().__init__(f"{path}: {fault}")
        self.path = path


class CheckpointRemovedError(FatalError):
    """A checkpoint was removed while it was read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} was removed while it was read; `replay checkpoint list` lists the existing ones")


@contextmanager
def unless_removed(folder: Path) -> Iterator[None]:
    """If reading a checkpoint fails in the block because it was removed, raise `CheckpointRemovedError`."""
    try:
        yield
    except (DamagedCheckpointError, OSError) as error:
        if folder.is_dir():
            raise
        raise CheckpointRemovedError(folder) from error


@dataclass(frozen=True)
class FileManifest:
    """A file of a table in a checkpoint."""

    name: str
    """Name within the table's directory."""
    size: int
    """Size in bytes."""
    crc32: int
    """zlib's CRC-32 of the whole content."""


@dataclass(frozen=True)
class TableManifest:
    """A table in a checkpoint."""

    config: TableConfig
    uid: bytes
    state: TableState
    """The table's counters. The keys of its rows are ``range(state.floor, state.inserted)``."""
    left_out: int
    """Number of rows, the oldest ones, that were overwritten before they could be copied."""
    files: Sequence[FileManifest]

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.state.inserted - self.state.floor

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {
            "config": self.config.to_json(),
            "uid": self.uid.hex(),
            "state": self.state._asdict(),
            "left_out": self.left_out,
            "files": {file.name: {"bytes": file.size, "crc32": file.crc32} for file in self.files},
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TableManifest:
        """Convert from the JSON values of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: the values are malformed.
        """
        table = cls(
            TableConfig.from_json(stored["config"]),
            bytes.fromhex(stored["uid"]),
            TableState.from_json(stored["state"]),
            stored["left_out"],
            [FileManifest(name, file["bytes"], file["crc32"]) for name, file in stored["files"].items()],
        )
        state, config = table.state, table.config
        state.check(config.numbers_per_row)
        KEYS.check("left_out", table.left_out)
        for file in table.files:
            BYTES.check(f"files.{file.name}.bytes", file.size)
        if len(table.uid) != UID_BYTES or state.oldest(config.most_live, config.times) != state.floor:
            raise ValueError(f"{table.size} rows from key {state.floor} on, uid of {len(table.uid)} bytes")
        return table


@dataclass(frozen=True)
class CheckpointManifest:
    """The manifest of a checkpoint."""

    taken_s: float
    """Time of the checkpoint, in seconds since 1970 (UTC)."""
    tables: Sequence[TableManifest]
    """Sorted by name."""
    shards: ShardMap | None = None
    """The server's shard map; None if the server had none."""
    shard_id: int | None = None
    """Id of the server's shard. None if the server had no map, or wrote a periodic checkpoint: only clients know which
    shard a server has."""

    @property
    def nbytes(self) -> int:
        """Bytes of all files of all tables."""
        return sum(file.size for table in self.tables for file in table.files)

    def to_bytes(self) -> bytes:
        """Serialize the content with the checksum of its canonical form."""
        content: dict[str, Any] = {"taken_s": self.taken_s, "tables": [table.to_json() for table in self.tables]}
        if self.shards is not None:
            content["shards"] = self.shards.to_json()
        if self.shard_id is not None:
            content["shard_id"] = self.shard_id
        document = {"format_version": CHECKPOINT_VERSION, "crc32": _checksum(content), "content": content}
        return json.dumps(document, indent=2).encode()

    @classmethod
    def load(cls, folder: Path) -> CheckpointManifest:
        """Read the manifest of a checkpoint; raise `DamagedCheckpointError` if it is missing or corrupt."""
        path = folder / CHECKPOINT_MANIFEST_FILE
        try:
            document = json.loads(path.read_bytes())
            if document["format_version"] != CHECKPOINT_VERSION:
                raise ValueError(
                    f"expected format version {CHECKPOINT_VERSION}, found {document['format_version']}; restore it "
                    "with the replay-server version that wrote it"
                )
            content = document["content"]
            if document["crc32"] != _checksum(content):
                raise ValueError("its checksum does not match its content")
            tables = [TableManifest.from_json(table) for table in content["tables"]]
            shards = ShardMap.from_json(content["shards"]) if "shards" in content else None
            shard_id = content.get("shard_id")
            if shard_id is not None and not (shards and shards.has(shard_id)):
                raise ValueError(f"it is of shard {shard_id}, which is not in its shard map")
            return cls(content["taken_s"], tables, shards, shard_id)
        except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise DamagedCheckpointError(path, f"{type(error).__name__}: {error}") from error


def _checksum(content: object) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
