"""The rows of a table: one mapped file per column, each a ring of ``slots`` values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array, flat_rows
from replay_proto.layout import column_file
from replay_proto.schema import Column, Schema

from replay_server.files.mapped_file import MappedFile
from replay_server.files.memory_limit import MemoryLimit
from replay_server.storage.format import CHECKSUM_BYTES
from replay_server.storage.power_loss.row_checksums import RowChecksums

LINK_COLUMN = "_link"
"""Reserved name of the column that stores each row's link; see `replay_server.storage.runs`."""
LINK = Column("uint64", (2,))
"""The link of a row in a plain table: stream and episode."""
STEP_LINK = Column("uint64", (3,))
"""The link of a row in a table of steps: stream, episode and step."""


_LONG_ROW_BYTES = 1 << 12
"""For rows of at least this size, a view takes less time than a copy."""


@dataclass(frozen=True)
class _Ring:
    file: MappedFile
    rows: Array
    """The column's values, dtype[slots, *shape]."""
    values: Array
    """The same as dtype[slots, elements]."""
    row_bytes: int


class RowStore:
    """Stores row values by slot. Other modules store priorities and know which rows are live."""

    def __init__(
        self, folder: Path, schema: Schema, slots: int, *, create: bool, link: Column = LINK, checked: bool = False
    ) -> None:
        """Map the columns of the table in ``folder``, and, if ``checked``, the rows' checksums."""
        self.slots = slots
        self._rings: dict[str, _Ring] = {}
        for index, (name, column) in enumerate({**schema.columns, LINK_COLUMN: link}.items()):
            file = MappedFile(folder / column_file(index), slots * column.row_bytes, create=create)
            rows = file.view(column.dtype, (slots, *column.shape))
            self._rings[name] = _Ring(file, rows, flat_rows(rows), column.row_bytes)
        self._reserved_rows = 0  # in all files; the files may have more
        self.checksums: RowChecksums | None = None
        """Checksums of the rows, if any."""
        if checked:
            self.add_checksums(folder, create=create)

    def add_checksums(self, folder: Path, *, create: bool = True) -> None:
        """Add a checksum file; the caller must seal the existing rows."""
        self.checksums = RowChecksums(folder, [ring.values for ring in self._rings.values()], create=create)
        self._reserved_rows = 0

    @property
    def reserved_bytes(self) -> int:
        """Bytes reserved so far for all columns."""
        return sum(file.reserved for file in self.files())

    def reserve(self, first_key: int, count: int, memory: MemoryLimit | None = None) -> None:
        """Reserve space for rows, within the limit on memory if there is one; or raise `NoSpaceError`."""
        rows = min(first_key + count, self.slots)
        if rows <= self._reserved_rows:
            return
        if memory is not None:
            growth = sum([ring.file.growth(rows * ring.row_bytes) for ring in self._rings.values()])
            if growth:
                memory.check(growth)
        for ring in self._rings.values():
            ring.file.reserve(rows * ring.row_bytes)
        if self.checksums is not None:
            self.checksums.file.reserve(rows * CHECKSUM_BYTES)
        self._reserved_rows = rows

    def write(self, first_key: int, columns: Mapping[str, Array], links: NDArray[np.uint64]) -> None:
        """Store rows under consecutive keys; their space must be reserved.

        Args:
            first_key: key of the first row.
            columns: every column of the schema by name, ``dtype[n, *shape]``; n is at most ``slots``.
            links: uint64[n, words]: stream, episode and step of each row; see `Runs.links`.
        """
        start = first_key % self.slots
        for name, values in columns.items():
            store_in_ring(self._rings[name].rows, start, values)
        store_in_ring(self._rings[LINK_COLUMN].rows, start, links)

    def gather(self, keys: NDArray[np.int64], out: Mapping[str, Array]) -> None:
        """Copy the rows with these keys, int64[n], into ``out``, which has an array ``dtype[n, *shape]`` per column."""
        slots = keys % self.slots
        for name, values in out.items():
            # Modes other than "raise" let take() write directly to `out`; the slots are always in range.
            np.take(self._rings[name].values, slots, axis=0, out=flat_rows(values), mode="clip")

    def parts(self, keys: NDArray[np.int64], name: str) -> list[memoryview]:
        """Return a column's values in the rows with these keys, int64[n], as contiguous parts that the caller joins.

        Long rows are not copied, so inserts may overwrite the returned parts later.
        """
        slots, ring = keys % self.slots, self._rings[name]
        if ring.row_bytes < _LONG_ROW_BYTES:
            return [np.take(ring.values, slots, axis=0).data]
        column = ring.values.reshape(-1).view(np.uint8).data
        return [column[start : start + ring.row_bytes] for start in (slots * ring.row_bytes).tolist()]

    def links(self, keys: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the links of stored rows, uint64[n, words]; see `Runs.links`."""
        return np.take(self._rings[LINK_COLUMN].values, keys % self.slots, axis=0)

    def values(self) -> Sequence[Array]:
        """Return all columns, then the links, each as ``dtype[slots, elements]``."""
        return [ring.values for ring in self._rings.values()]

    def files(self) -> Sequence[MappedFile]:
        """Return all files of the store."""
        files = [ring.file for ring in self._rings.values()]
        return files if self.checksums is None else [*files, self.checksums.file]

    def close(self) -> None:
        """Unmap all files."""
        for ring in self._rings.values():
            ring.file.close()
        if self.checksums is not None:
            self.checksums.close()
        self._rings.clear()


def store_in_ring(ring: Array, start: int, values: Array) -> None:
    """Store ``values`` from slot ``start`` on, wrapping around at the end of the ring."""
    end, slots = start + len(values), len(ring)
    if end <= slots:
        ring[start:end] = values
    else:
        ring[start:] = values[: slots - start]
        ring[: end - slots] = values[slots - start :]
