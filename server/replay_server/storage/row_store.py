"""The rows of a table: one mapped file per column, each a ring of ``slots`` values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array, flat_rows
from replay_proto.layout import column_file
from replay_proto.schema import Column, Schema

from replay_server.files.mapped_file import MappedFile
from replay_server.files.memory_limit import MemoryLimit
from replay_server.storage.format import CHECKSUM_BYTES, PLACE_CHECKSUM_BYTES
from replay_server.storage.power_loss.place_checksums import PlaceChecksums
from replay_server.storage.power_loss.row_checksums import RowChecksums
from replay_server.storage.rings import AnyRing, MutableRing, Ring, RowCopier, Versions

LINK_COLUMN = "_link"
"""Reserved name of the column that stores each row's link; see `replay_server.storage.runs`."""
LINK = Column("uint64", (2,))
"""The link of a row in a plain table: stream and episode."""
STEP_LINK = Column("uint64", (3,))
"""The link of a row in a table of steps: stream, episode and step."""


class RowStore:
    """Stores row values by slot. Other modules store priorities and know which rows are live."""

    def __init__(
        self, folder: Path, schema: Schema, slots: int, *, create: bool, link: Column = LINK, checked: bool = False
    ) -> None:
        """Map the columns of the table in ``folder``, and, if ``checked``, the rows' checksums."""
        self.slots = slots
        self._versions = Versions(folder, slots, create=create) if schema.mutable else None
        self._rings: dict[str, AnyRing] = {}
        for index, (name, column) in enumerate({**schema.columns, LINK_COLUMN: link}.items()):
            path = folder / column_file(index, is_mutable=column.mutable)
            if column.mutable and self._versions is not None:
                self._rings[name] = MutableRing(path, column, self._versions, slots, create=create)
            else:
                self._rings[name] = Ring(path, column, slots, create=create)
        self._reserved_rows = 0  # in all files; the files may have more
        self.updates = 0
        """Number of calls of `update`."""
        self.checksums: RowChecksums | None = None
        """Checksums of the rows, if any."""
        self.place_checksums: PlaceChecksums | None = None
        """Checksums of the values of mutable columns, if there are such columns and rows have checksums."""
        if checked:
            self.add_checksums(folder, create=create)

    def add_checksums(self, folder: Path, *, create: bool = True) -> None:
        """Add a checksum file; the caller must seal the existing rows."""
        values = [ring.values for ring in self._rings.values() if isinstance(ring, Ring)]
        self.checksums = RowChecksums(folder, values, create=create)
        if self._versions is not None:
            rings = [ring for ring in self._rings.values() if isinstance(ring, MutableRing)]
            self.place_checksums = PlaceChecksums(folder, rings, self._versions, self.checksums, create=create)
        self._reserved_rows = 0

    @property
    def reserved_bytes(self) -> int:
        """Bytes reserved so far for all columns."""
        return sum(file.held_bytes for file in self.files())

    def reserve(self, first_key: int, count: int, memory: MemoryLimit | None = None) -> None:
        """Reserve space for rows, within the limit on memory if there is one; or raise `NoSpaceError`."""
        rows = min(first_key + count, self.slots)
        if rows <= self._reserved_rows:
            return
        if memory is not None:
            growth = sum([ring.file.growth(rows * ring.slot_bytes) for ring in self._rings.values()])
            if growth:
                memory.check(growth)
        for ring in self._rings.values():
            ring.file.reserve(rows * ring.slot_bytes)
        if self.checksums is not None:
            self.checksums.file.reserve(rows * CHECKSUM_BYTES)
        if self.place_checksums is not None:
            self.place_checksums.file.reserve(rows * PLACE_CHECKSUM_BYTES)
        self._reserved_rows = rows

    def write(self, first_key: int, columns: Mapping[str, Array], links: NDArray[np.uint64]) -> None:
        """Store rows under consecutive keys; their space must be reserved.

        ``columns`` are all of the schema by name, ``dtype[n, *shape]``; n is at most ``slots``. ``links``, uint64[n,
        words], has stream, episode and step of each row; see `Runs.links`.
        """
        first = first_key % self.slots
        for name, values in columns.items():
            self._rings[name].store(first, values)
        self._rings[LINK_COLUMN].store(first, links)

    def update(self, keys: NDArray[np.int64], columns: Mapping[str, Array]) -> None:
        """Store new values of some mutable columns by name, ``dtype[n, *shape]``; see `replay_server.storage.rings`.

        ``keys``, int64[n], are distinct keys of live rows.
        """
        assert self._versions is not None
        slots = keys % self.slots
        for name, ring in self._rings.items():
            if isinstance(ring, MutableRing):
                ring.store_beside(slots, columns.get(name))
        if self.place_checksums is not None:
            self.place_checksums.seal(keys, beside=True)
            self.place_checksums.periods.updated(slots)
        self._versions.increment(slots)
        self.updates += 1

    def may_update(self, keys: NDArray[np.int64]) -> bool:
        """Whether these rows, with keys int64[n], may be updated before the next sync; see `place_checksums`."""
        return self.place_checksums is None or self.place_checksums.periods.may_update(keys % self.slots)

    def seal(self, first_key: int, count: int, origin: int) -> None:
        """Store checksums of rows that were just written, if rows have any; see `RowChecksums.seal`."""
        if self.checksums is not None:
            self.checksums.seal(first_key, count, origin)
        if self.place_checksums is not None:
            self.place_checksums.seal(np.arange(first_key, first_key + count))

    def settle(self, first_key: int, count: int) -> NDArray[np.bool_]:
        """Return which rows are whole after a power loss, bool[count], and make their intact values current."""
        assert self.checksums is not None
        is_whole = self.checksums.whole(first_key, count)
        if self.place_checksums is not None:
            is_whole[is_whole] = self.place_checksums.settle(first_key + np.flatnonzero(is_whole))
        return is_whole

    def gather(self, keys: NDArray[np.int64], out: Mapping[str, Array]) -> None:
        """Copy the rows with these keys, int64[n], into ``out``, which has an array ``dtype[n, *shape]`` per column."""
        slots = keys % self.slots
        for name, values in out.items():
            self._rings[name].take(slots, flat_rows(values))

    def parts(self, keys: NDArray[np.int64], name: str) -> list[memoryview]:
        """Return a column's values in the rows with these keys, int64[n]; see `AnyRing.parts`."""
        return self._rings[name].parts(keys % self.slots)

    def links(self, keys: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the links of stored rows, uint64[n, words]; see `Runs.links`."""
        return self._rings[LINK_COLUMN].take(keys % self.slots).view(np.uint64)

    def versions(self, keys: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return how often the slots of these rows were updated, int64[n]; None: no column is mutable."""
        return None if self._versions is None else self._versions.of(keys % self.slots)

    def copier(self) -> RowCopier:
        """Return what copies consecutive rows, also after this store was closed."""
        return RowCopier(list(self._rings.values()), self._versions, self.slots)

    def rings(self) -> Sequence[AnyRing]:
        """Return the rings of all columns, and then of the links."""
        return list(self._rings.values())

    def files(self) -> Sequence[MappedFile]:
        """Return all files of the store."""
        others = (self._versions, self.checksums, self.place_checksums)
        return [each.file for each in (*self._rings.values(), *others) if each is not None]

    def close(self) -> None:
        """Unmap all files."""
        for each in (*self._rings.values(), self._versions, self.checksums, self.place_checksums):
            if each is not None:
                each.close()
        self._rings.clear()
