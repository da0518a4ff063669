"""Records of recent inserts, which make retries idempotent.

Every writer numbers its inserts from 1. A mapped file stores the sequence number, first key and row count of each
writer's last `INSERTS_KEPT` inserts. A record is stored before its insert is committed. At startup, the server erases
records of inserts that were not committed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from replay_server.errors import sequence_gap, sequence_too_old, writer_unknown
from replay_server.files.mapped_file import MappedFile
from replay_server.storage.format import WRITERS_FILE
from replay_server.storage.ranges import KEYS

WRITERS_KEPT = 4096
"""Maximum number of writers to remember: those that inserted most recently."""
INSERTS_KEPT = 16
"""Maximum inserts that a writer may have in flight and retry."""
WRITER_ID_BYTES = 16

_RECORD = np.dtype([("sequence", "<i8"), ("first_key", "<i8"), ("count", "<i8")])
_WRITER = np.dtype([("id", "<u8", (2,)), ("records", _RECORD, (INSERTS_KEPT,))])
WRITER_RECORDS_BYTES = WRITERS_KEPT * _WRITER.itemsize


@dataclass
class _Writer:
    place: int
    last_sequence: int


class WriterRecords:
    """The recent inserts of every recent writer of one table."""

    def __init__(self, folder: Path, *, inserted: int, create: bool) -> None:
        """Map the records of the table in ``folder``, and erase records of rows beyond ``inserted``."""
        self._path = folder / WRITERS_FILE
        self.file = MappedFile(self._path, WRITER_RECORDS_BYTES, create=create)
        self.file.reserve(self.file.size)
        table: NDArray[np.void] = self.file.view(_WRITER, (WRITERS_KEPT,))  # type: ignore[assignment]
        self._ids = table["id"]
        self._records = table["records"]
        self._writers: OrderedDict[bytes, _Writer] = OrderedDict()  # most recent writer last
        self._free: list[int] = []
        self._recover(inserted)

    def find(self, writer_id: bytes, sequence: int) -> tuple[int, int] | None:
        """Return None if an insert is the writer's next one, or the first key and row count if it is a repeat.

        Raises:
            RequestError: the sequence number leaves a gap, the repeat is too old, or the writer was forgotten.
        """
        writer = self._writers.get(writer_id)
        if writer is None:
            if sequence != 1:
                raise writer_unknown(sequence)
            return None
        if sequence == writer.last_sequence + 1:
            return None
        if sequence > writer.last_sequence:
            raise sequence_gap(writer.last_sequence + 1, sequence)
        record = self._records[writer.place, sequence % INSERTS_KEPT]
        if record["sequence"] != sequence:
            raise sequence_too_old(max(1, writer.last_sequence - INSERTS_KEPT + 1), sequence)
        return int(record["first_key"]), int(record["count"])

    def store(self, writer_id: bytes, sequence: int, first_key: int, count: int) -> None:
        """Record an insert that is about to be committed; `find` must have returned None for it."""
        writer = self._writers.get(writer_id)
        if writer is None:
            writer = self._writers[writer_id] = _Writer(self._take_place(), 0)
            self._records[writer.place] = 0
            self._ids[writer.place] = np.frombuffer(writer_id, "<u8")
        record = self._records[writer.place, sequence % INSERTS_KEPT]
        # If the server is killed midway, this sequence must not be paired with the keys of an older insert.
        record["sequence"] = 0
        record["first_key"] = first_key
        record["count"] = count
        record["sequence"] = sequence
        writer.last_sequence = sequence
        self._writers.move_to_end(writer_id)

    def last_sequence(self, writer_id: bytes) -> int:
        """Return the sequence number of a writer's last insert; 0 for an unknown writer."""
        writer = self._writers.get(writer_id)
        return 0 if writer is None else writer.last_sequence

    def used(self) -> bytes:
        """Return a copy of the part of the file that is in use."""
        places = max((writer.place for writer in self._writers.values()), default=-1) + 1
        return self.file.bytes[: places * _WRITER.itemsize].tobytes()

    def load(self, content: NDArray[np.uint8], inserted: int) -> None:
        """Load the records of a restored table before its first insert, without those of rows beyond ``inserted``."""
        self.file.bytes[:] = content
        self._writers.clear()
        self._recover(inserted)

    def close(self) -> None:
        """Unmap the file."""
        del self._ids, self._records
        self.file.close()

    def _take_place(self) -> int:
        """Return a free entry's index for a new writer. If none is free, evict the writer idle for longest."""
        if self._free:
            return self._free.pop()
        _, forgotten = self._writers.popitem(last=False)
        return forgotten.place

    def _check(self, inserted: int) -> None:
        records = self._records
        sequence, first_key = records["sequence"], records["first_key"]
        impossible = (sequence < 0) | (
            (sequence > 0)
            & (
                (sequence % INSERTS_KEPT != np.arange(INSERTS_KEPT))
                | (records["count"] < 1)
                | (records["count"] > KEYS.most)
                | (first_key < KEYS.least)
                | (first_key >= inserted)
            )
        )
        if impossible.any():
            place, index = np.argwhere(impossible)[0]
            which = f"record {index} of writer {place}"
            raise ValueError(f"{self._path}: {which} is invalid: {records[place, index]}; the file is corrupt")

    def _recover(self, inserted: int) -> None:
        uncommitted = self._records["first_key"] + self._records["count"] > inserted
        self._records[uncommitted] = 0
        self._check(inserted)
        last = self._records["sequence"].max(axis=1)
        newest_key = self._records["first_key"].max(axis=1)
        known = np.flatnonzero(last)
        for place in known[np.argsort(newest_key[known], kind="stable")]:
            self._writers[self._ids[place].tobytes()] = _Writer(int(place), int(last[place]))
        self._free = np.flatnonzero(last == 0)[::-1].tolist()


def ids_in(content: NDArray[np.uint8]) -> list[bytes]:
    """Return the ids in all entries of a records file, used or unused. content: uint8[`WRITER_RECORDS_BYTES`]."""
    return [writer_id.tobytes() for writer_id in content.view(_WRITER)["id"]]
