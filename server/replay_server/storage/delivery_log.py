"""The last deliveries of a queue, which make repeated draws idempotent.

Every reader numbers its draws; see `ReaderStamp`. A mapped file has the reader and number of each of the last
`DELIVERIES_KEPT` draws, and which deliveries it was given. Deliveries are numbered, too; see
`replay_server.table.oldest_first`. A draw is stored before its deliveries are counted. At startup, the server erases
draws whose deliveries were not counted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay_server.files.mapped_file import MappedFile
from replay_server.storage.format import DELIVERIES_FILE

DELIVERIES_KEPT: Final = 4096
"""Maximum number of draws to remember."""
READER_ID_BYTES: Final = 16

_ENTRY: Final = np.dtype(
    {
        "names": ["id", "sequence", "received", "first", "end"],
        "formats": [("<u8", (2,)), "<i8", "<i8", "<i8", "<i8"],
        "itemsize": 64,  # a divisor of a disk's sector, which is written as a whole
    }
)
DELIVERY_LOG_BYTES: Final = DELIVERIES_KEPT * _ENTRY.itemsize


class ReaderStamp(NamedTuple):
    """Identifies a draw by its reader and sequence number."""

    reader_id: bytes
    """Id of the reader, 16 bytes."""
    sequence: int
    """Sequence number of the draw, at least 1; each draw of a reader has a larger one."""
    received: int
    """Sequence number of the newest draw whose reply the reader had received before this draw; 0: none."""


class _Draw(NamedTuple):
    received: int
    deliveries: range


class DeliveryLog:
    """The recent draws of all readers of one queue."""

    def __init__(self, folder: Path, *, delivered: int, create: bool) -> None:
        """Map the log of the queue in ``folder``, and erase draws of deliveries from the number ``delivered`` on.

        Raises:
            ValueError: the file is corrupt.
        """
        self.folder = folder
        """The folder of the queue."""
        path = folder / DELIVERIES_FILE
        # Earlier versions did not create it. A server that was killed while it did may have left an empty file.
        if path.exists() and path.stat().st_size == 0:
            path.unlink()
        self.file = MappedFile(path, DELIVERY_LOG_BYTES, create=create or not path.exists())
        self.file.reserve(self.file.size)
        self._entries: NDArray[np.void] = self.file.view(_ENTRY, (DELIVERIES_KEPT,))  # type: ignore[assignment]
        self._draws: OrderedDict[tuple[bytes, int], _Draw] = OrderedDict()  # oldest first
        self._next = 0  # place of the next entry
        self._recover(path, delivered)

    def find(self, stamp: ReaderStamp) -> range | None:
        """Return the numbers of the deliveries that a draw was given; None if it is new, or was forgotten."""
        draw = self._draws.get((stamp.reader_id, stamp.sequence))
        return None if draw is None else draw.deliveries

    def store(self, stamp: ReaderStamp, deliveries: range) -> None:
        """Record a draw, whose deliveries, without gaps in the order of the queue, are about to be counted."""
        self._draws.pop((stamp.reader_id, stamp.sequence), None)
        entry = self._entries[self._next]
        if len(self._draws) == DELIVERIES_KEPT:
            self._draws.popitem(last=False)
        # If the server is killed midway, this sequence must not be paired with the deliveries of an older draw.
        entry["sequence"] = 0
        entry["id"] = np.frombuffer(stamp.reader_id, "<u8")
        entry["received"] = stamp.received
        entry["first"], entry["end"] = deliveries.start, deliveries.stop
        entry["sequence"] = stamp.sequence
        self._next = (self._next + 1) % DELIVERIES_KEPT
        self._draws[stamp.reader_id, stamp.sequence] = _Draw(stamp.received, deliveries)

    def unconfirmed(self) -> Iterator[tuple[bytes, int, range]]:
        """Yield reader, sequence number and deliveries of each draw whose reply its reader may not have received."""
        received: dict[bytes, int] = {}
        for (reader, _), draw in self._draws.items():
            received[reader] = max(received.get(reader, 0), draw.received)
        for (reader, sequence), draw in self._draws.items():
            if sequence > received[reader]:
                yield reader, sequence, draw.deliveries

    def close(self) -> None:
        """Unmap the file."""
        del self._entries
        self.file.close()

    def _recover(self, path: Path, delivered: int) -> None:
        entries = self._entries
        entries[entries["end"] > delivered] = 0
        used = np.flatnonzero(entries["sequence"])
        first, end = entries["first"][used], entries["end"][used]
        impossible = (entries["sequence"][used] < 1) | (entries["received"][used] < 0) | (first < 0) | (first >= end)
        if impossible.any():
            place = used[np.argmax(impossible)]
            raise ValueError(f"{path}: entry {place} is invalid: {entries[place]}; the file is corrupt")
        for place in used[np.argsort(first, kind="stable")].tolist():
            entry = entries[place]
            deliveries = range(int(entry["first"]), int(entry["end"]))
            key = entry["id"].tobytes(), int(entry["sequence"])
            self._draws.pop(key, None)
            self._draws[key] = _Draw(int(entry["received"]), deliveries)
            self._next = (place + 1) % DELIVERIES_KEPT
