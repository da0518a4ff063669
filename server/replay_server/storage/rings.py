"""The stored values of one column: a mapped file with a ring of slots.

A `Ring` has one place for each slot. The ring of a mutable column has two, and each slot has a version, which counts
how often its row was updated: the current values of slot s are in place ``2 * s + version % 2``. An update writes all
mutable columns of a row to the other place and then increments the version, in one aligned store. So a reader gets the
old values or the new ones, and a server that is killed during an update leaves the old ones. A copy is intact if the
version did not change meanwhile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array, flat_rows
from replay_proto.layout import VERSION_BYTES, VERSIONS_FILE
from replay_proto.schema import Column

from replay_server.files.mapped_file import MappedFile

_LONG_ROW_BYTES: Final = 1 << 12
"""For rows of at least this size, a view takes less time than a copy."""

Slots = NDArray[np.int64]
"""int64[n]: places in the ring."""


class Versions:
    """The version of each slot of a table with mutable columns."""

    def __init__(self, folder: Path, slots: int, *, create: bool) -> None:
        """Map the versions of the table in ``folder``, and reserve their space."""
        self.file = MappedFile(folder / VERSIONS_FILE, slots * VERSION_BYTES, create=create)
        self.file.reserve(self.file.size)
        self._words: NDArray[np.int64] = self.file.view(np.dtype("<i8"), (slots,))  # type: ignore[assignment]

    def of(self, slots: Slots) -> NDArray[np.int64]:
        """Return the versions of these slots, int64[n]."""
        return self._words.take(slots, mode="clip")

    def current(self, slots: Slots) -> Slots:
        """Return the places of the current values of these slots, int64[n]."""
        return 2 * slots + (self.of(slots) & 1)

    def increment(self, slots: Slots) -> None:
        """Make the other places of these slots current. The slots must be distinct."""
        self._words[slots] += 1

    def set(self, slots: Slots, versions: NDArray[np.int64]) -> None:
        """Set the versions of these slots, after a power loss."""
        self._words[slots] = versions

    def close(self) -> None:
        """Unmap the file."""
        self.file.close()


class AnyRing(ABC):
    """The values of one column by slot."""

    def __init__(self, path: Path, column: Column, slots: int, places: int, *, create: bool) -> None:
        """Map a file with this number of places for each slot."""
        self.column = column
        self.slot_bytes = places * column.row_bytes
        """Bytes of each slot in the file."""
        self.file = MappedFile(path, slots * self.slot_bytes, create=create)

    @abstractmethod
    def store(self, first: int, values: Array) -> None:
        """Store values, ``dtype[n, *shape]``, from the slot ``first`` on, wrapping around at the end of the ring."""

    @abstractmethod
    def copy(self, first: int, count: int) -> Array:
        """Copy ``dtype[count, elements]`` from the slot ``first`` on, wrapping around at the end of the ring."""

    @abstractmethod
    def take(self, slots: Slots, out: Array | None = None) -> Array:
        """Copy the values of these slots, ``dtype[n, elements]``, into ``out`` if it is given."""

    @abstractmethod
    def parts(self, slots: Slots) -> list[memoryview]:
        """Return the values of these slots as contiguous parts. Long values are views of the file."""

    def close(self) -> None:
        """Unmap the file."""
        self.file.close()


class Ring(AnyRing):
    """The values of a column that never change."""

    def __init__(self, path: Path, column: Column, slots: int, *, create: bool) -> None:
        """Map a file."""
        super().__init__(path, column, slots, 1, create=create)
        self.rows = self.file.view(column.dtype, (slots, *column.shape))
        self.values = flat_rows(self.rows)
        """The same as ``dtype[slots, elements]``."""
        self._bytes = self.values.view(np.uint8)

    def store(self, first: int, values: Array) -> None:
        """See `AnyRing`."""
        store_in_ring(self.rows, first, values)

    def copy(self, first: int, count: int) -> Array:
        """See `AnyRing`."""
        return ring_copy(self.values, first, count)

    def take(self, slots: Slots, out: Array | None = None) -> Array:
        """See `AnyRing`."""
        # Modes other than "raise" let take() write directly to `out`; the slots are always in range.
        return np.take(self.values, slots, axis=0, out=out, mode="clip")

    def parts(self, slots: Slots) -> list[memoryview]:
        """See `AnyRing`."""
        return parts_of(self._bytes, slots)


class MutableRing(AnyRing):
    """The values of a mutable column; see the module."""

    def __init__(self, path: Path, column: Column, versions: Versions, slots: int, *, create: bool) -> None:
        """Map a file. ``versions`` say which place of each slot is current."""
        super().__init__(path, column, slots, 2, create=create)
        self._versions = versions
        self._slots = slots
        self.places = flat_rows(self.file.view(column.dtype, (2 * slots, *column.shape)))
        """All values, ``dtype[2 * slots, elements]``."""
        self._bytes = self.places.view(np.uint8)

    def store(self, first: int, values: Array) -> None:
        """See `AnyRing`. The slots have no live rows, so nobody reads them meanwhile, and versions stay."""
        self.places[self._versions.current(self._consecutive(first, len(values)))] = flat_rows(values)

    def copy(self, first: int, count: int) -> Array:
        """See `AnyRing`."""
        return self.take(self._consecutive(first, count))

    def take(self, slots: Slots, out: Array | None = None) -> Array:
        """See `AnyRing`."""
        return np.take(self.places, self._versions.current(slots), axis=0, out=out, mode="clip")

    def parts(self, slots: Slots) -> list[memoryview]:
        """See `AnyRing`."""
        return parts_of(self._bytes, self._versions.current(slots))

    def store_beside(self, slots: Slots, values: Array | None) -> None:
        """Store values, ``dtype[n, *shape]``, in the other places of these slots; None: their current values."""
        current = self._versions.current(slots)
        self.places[current ^ 1] = self.places[current] if values is None else flat_rows(values)

    def _consecutive(self, first: int, count: int) -> Slots:
        return np.arange(first, first + count, dtype=np.int64) % self._slots


class RowCopier:
    """Copies consecutive rows, in any thread. Keeps the mapped files open."""

    def __init__(self, rings: Sequence[AnyRing], versions: Versions | None, slots: int) -> None:
        """Copy from all rings of a table."""
        self._rings = rings
        self._versions = versions
        self._slots = slots

    def copy(self, first_key: int, count: int) -> list[Array]:
        """Return consecutive rows: ``dtype[count, elements]`` from each ring.

        Updates meanwhile do not mix the old and new values of a row.
        """
        first = first_key % self._slots
        slots = np.arange(first, first + count, dtype=np.int64) % self._slots
        seen = None if self._versions is None else self._versions.of(slots)
        columns = [ring.copy(first, count) for ring in self._rings]
        while self._versions is not None and len(changed := np.flatnonzero((now := self._versions.of(slots)) != seen)):
            seen = now
            for column, ring in zip(columns, self._rings, strict=True):
                if isinstance(ring, MutableRing):
                    column[changed] = ring.take(slots[changed])
        return columns


def store_in_ring(ring: Array, start: int, values: Array) -> None:
    """Store ``values`` from slot ``start`` on, wrapping around at the end of the ring."""
    end, slots = start + len(values), len(ring)
    if end <= slots:
        ring[start:end] = values
    else:
        ring[start:] = values[: slots - start]
        ring[: end - slots] = values[slots - start :]


def ring_copy(ring: Array, start: int, count: int) -> Array:
    """Copy ``count`` values of a ring from slot ``start`` on, wrapping around at its end."""
    before_end = min(len(ring) - start, count)
    out = np.empty((count, *ring.shape[1:]), ring.dtype)
    out[:before_end] = ring[start : start + before_end]
    out[before_end:] = ring[: count - before_end]
    return out


def parts_of(values: NDArray[np.uint8], places: Slots) -> list[memoryview]:
    """Return values of a column, as ``uint8[slots, bytes]``, as contiguous parts that the caller joins.

    Long values are not copied, so inserts and updates may overwrite the returned parts later.
    """
    row_bytes = values.shape[1]
    if row_bytes < _LONG_ROW_BYTES:
        return [values.take(places, axis=0, mode="clip").data]
    column = values.reshape(-1).data
    return [column[start : start + row_bytes] for start in (places * row_bytes).tolist()]
