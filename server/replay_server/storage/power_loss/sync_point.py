"""Sync points: the counters and writers' records of a table, stored after everything they refer to is on disk.

The file has room for two sync points, written alternately. If a power loss tears the one being written, its checksum
detects this, and the other one is still valid.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from replay_server.files.mapped_file import MappedFile
from replay_server.storage.format import SYNC_POINT_FILE
from replay_server.storage.table_state import STATE_WORDS, TableState
from replay_server.storage.writer_records import WRITER_RECORDS_BYTES

_PAGE_BYTES = 4096
_PLACES = 2
_WORDS = np.dtype("<i8")
_WORD_COUNT = 1 + STATE_WORDS + 2
_DIGEST_BYTES = 16
_HEAD_BYTES = _DIGEST_BYTES + _WORD_COUNT * _WORDS.itemsize
_PLACE_BYTES = -(-(_HEAD_BYTES + WRITER_RECORDS_BYTES) // _PAGE_BYTES) * _PAGE_BYTES
SYNC_POINT_BYTES = _PLACES * _PLACE_BYTES


@dataclass(frozen=True)
class SyncPoint:
    """A past state of a table. All of its rows are on disk, or have been overwritten since."""

    state: TableState
    """The table's counters."""
    lost: int
    """Rows ever lost to power losses."""
    writers: bytes
    """The part of the writers' records that is in use."""


class SyncPoints:
    """The last two sync points of a table."""

    def __init__(self, folder: Path, *, create: bool) -> None:
        """Map the sync points of the table in ``folder``."""
        self.file = MappedFile(folder / SYNC_POINT_FILE, SYNC_POINT_BYTES, create=create)
        self.file.reserve(SYNC_POINT_BYTES)
        self._number, self.newest = max((self._load(place) for place in range(_PLACES)), key=lambda found: found[0])
        """The last complete sync point, or None."""

    def store(self, point: SyncPoint) -> None:
        """Store a sync point and sync it to disk. Everything it refers to must already be on disk."""
        words = (*point.state, point.lost, len(point.writers))
        body = np.array((self._number + 1, *words), _WORDS).tobytes() + point.writers
        start = (self._number + 1) % _PLACES * _PLACE_BYTES
        content = _digest(body) + body
        self.file.bytes[start : start + len(content)] = np.frombuffer(content, np.uint8)
        self.file.sync()
        self._number += 1
        self.newest = point

    def close(self) -> None:
        """Unmap the file."""
        self.file.close()

    def _load(self, place: int) -> tuple[int, SyncPoint | None]:
        """Read a sync point and its number; the number is 0 if there is none."""
        content = self.file.bytes[place * _PLACE_BYTES : (place + 1) * _PLACE_BYTES].tobytes()
        number, *counts, size = np.frombuffer(content, _WORDS, _WORD_COUNT, _DIGEST_BYTES).tolist()
        if number < 1 or not 0 <= size <= WRITER_RECORDS_BYTES:
            return 0, None
        body = content[_DIGEST_BYTES : _HEAD_BYTES + size]
        if content[:_DIGEST_BYTES] != _digest(body):
            return 0, None
        *words, lost = counts
        return number, SyncPoint(TableState.from_words(words), lost, body[_HEAD_BYTES - _DIGEST_BYTES :])


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()
