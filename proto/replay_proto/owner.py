"""The owner record: which running server a directory belongs to.

    <folder>/owner.json         written by the server that owns the folder; its modification time is the heartbeat

The record is a single JSON object, padded with blanks, so that it can be overwritten in place without disk space. Its
checksum detects a torn record. `docs/project/storage.md` lists who reads the record, and what each reader checks.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self, get_args

OWNER_FILE: Final = "owner.json"
"""File name of the record."""
OWNER_ID_BYTES: Final = 16
RECORD_BYTES: Final = 1024
"""Size of the record, including padding."""

TablesState = Literal["synced", "stored", "unverified"]
"""What the storage has of the tables. ``synced``: everything is on disk. ``stored``: everything was written, but a part
may only be in the machine's memory. ``unverified``: rows may be torn until a start has verified them."""


class Storage(NamedTuple):
    """Identifies a file, so that its copies can be told from it."""

    device: int
    """Number of the mounted file system; may change when the machine starts again."""
    inode: int
    generation: int
    """Tells apart files that had the same inode in turn; 0 if the file system does not support this."""
    file_system: int
    """Id of the file system that outlives a restart of the machine; 0 if it has none."""


@dataclass(frozen=True)
class OwnerRecord:
    """The content of an owner record."""

    id: bytes
    """16 random bytes, drawn at each start of a server."""
    boot_id: str
    """The boot of the machine on which the server runs."""
    host: str
    """The machine's name, for messages."""
    process: int
    """The server's process, for messages: the number may be of another container."""
    is_running: bool
    """False after the server has ended properly."""
    tables: TablesState
    storage: Storage
    """The record's own file."""

    def to_bytes(self) -> bytes:
        """Encode the record, with padding."""
        fields = {**asdict(self), "id": self.id.hex(), "storage": self.storage._asdict()}
        return json.dumps({**fields, "crc32": _checksum(fields)}).ljust(RECORD_BYTES).encode("ascii")

    @classmethod
    def from_bytes(cls, content: bytes) -> Self | None:
        """Decode a record; None if it is torn or something else."""
        try:
            fields: dict[str, Any] = json.loads(content)
            if fields.pop("crc32") != _checksum(fields):
                return None
            record = cls(**{**fields, "id": bytes.fromhex(fields["id"]), "storage": Storage(**fields["storage"])})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return record if len(record.id) == OWNER_ID_BYTES and record.tables in get_args(TablesState) else None


class FoundRecord(NamedTuple):
    """A record as a reader finds it."""

    record: OwnerRecord | None
    """None if the file has no valid record."""
    device: int
    inode: int
    heartbeat_ns: int
    """Changes while the owner runs. Compare it only with itself: clocks of machines differ."""

    @property
    def is_original(self) -> bool:
        """Whether this is the file that the owner wrote, seen through the same mounted file system; not a copy."""
        return self.record is not None and (self.device, self.inode) == self.record.storage[:2]


def read_owner(folder: Path) -> FoundRecord:
    """Read the record in a folder.

    Raises:
        OSError: there is none, or it cannot be read.
    """
    # File systems that are shared by machines compare their caches with the server when a file is opened.
    descriptor = os.open(folder / OWNER_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        record = OwnerRecord.from_bytes(os.pread(descriptor, RECORD_BYTES, 0))
    finally:
        os.close(descriptor)
    return FoundRecord(record, status.st_dev, status.st_ino, status.st_mtime_ns)


def _checksum(fields: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode("ascii"))
