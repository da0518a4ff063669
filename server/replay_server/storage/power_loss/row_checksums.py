"""Checksums per row, which detect rows torn by a power loss.

Each slot has two words. The first is the row's origin: its writer, its insert, and whether it is the insert's first or
last row. For a row without a writer, the origin is 0. The second word is a checksum of key, origin, columns and link.
It includes the key, so that an old row in a slot is not mistaken for a newer one.

Each word w changes the checksum h by ``h = (h ^ w) * P; h ^= h >> 32``. This is FNV-1a (Fowler, Noll and Vo) with words
instead of bytes, and with a shift that mixes high bits into low ones, as in SplitMix64 (Steele, Lea and Flood, 2014).
Every step is a bijection of h and of w, so a change to one word is always detected, and a change to several words is
missed with probability 2^-64. The checksum protects against accidents, not forgery.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array

from replay_server.files.mapped_file import MappedFile
from replay_server.storage.format import CHECKSUM_BYTES, CHECKSUMS_FILE
from replay_server.storage.power_loss import checksum_kernels
from replay_server.storage.power_loss.checksum_kernels import FIRST, HAS_WRITER, LAST, compile_checksums

_SEQUENCE_BIT, _SEQUENCE_BITS = 3, 21
_TAG_BIT = _SEQUENCE_BIT + _SEQUENCE_BITS
_TAG_BYTES = 5


@dataclass(frozen=True)
class InsertTrace:
    """The part of an insert found in consecutive rows."""

    start: int
    """Index of the first row."""
    stop: int
    """Index after the last row."""
    has_writer: bool
    """Whether the insert has a writer. If not, the rows may come from several inserts without a writer."""
    tag: int
    """Tag of the writer, see `writer_tag`."""
    sequence: int
    """The low bits of the insert's sequence number, see `short_sequence`."""
    has_first: bool
    """Whether these rows include the insert's first row."""
    has_last: bool
    """Whether these rows include its last row."""


def inserts_in(words: NDArray[np.uint64]) -> Iterator[InsertTrace]:
    """Group rows by insert. words: uint64[n] from `RowChecksums.origins`."""
    names = words & ~np.uint64(FIRST | LAST)
    starts = np.flatnonzero(np.diff(names)) + 1
    # Sorted and unique; without rows, there are no pairs.
    for start, stop in pairwise(sorted({0, *starts.tolist(), len(words)})):
        word = int(names[start])
        yield InsertTrace(
            start=start,
            stop=stop,
            has_writer=bool(word & HAS_WRITER),
            tag=word >> _TAG_BIT,
            sequence=short_sequence(word >> _SEQUENCE_BIT),
            has_first=bool(int(words[start]) & FIRST),
            has_last=bool(int(words[stop - 1]) & LAST),
        )


def writer_tag(writer_id: bytes) -> int:
    """Return a 40-bit hash of a writer's id."""
    return int.from_bytes(hashlib.blake2b(writer_id, digest_size=_TAG_BYTES).digest(), "little")


def short_sequence(sequence: int) -> int:
    """Return the low bits of an insert's sequence number: enough bits not to wrap around between two syncs."""
    return sequence & ((1 << _SEQUENCE_BITS) - 1)


def origin_word(writer_id: bytes, sequence: int) -> int:
    """Return the part of the origin that all rows of an insert share."""
    return writer_tag(writer_id) << _TAG_BIT | short_sequence(sequence) << _SEQUENCE_BIT | HAS_WRITER


class RowChecksums:
    """The checksums of a table's rows, by slot."""

    def __init__(self, folder: Path, columns: list[Array], *, create: bool) -> None:
        """Map the checksums of the table in ``folder``.

        ``columns`` are every column, then the links, each as ``dtype[slots, elements]``.
        """
        compile_checksums()
        slots = self.slots = len(columns[0])
        self.file = MappedFile(folder / CHECKSUMS_FILE, slots * CHECKSUM_BYTES, create=create)
        self._words: NDArray[np.uint64] = self.file.view(np.dtype("<u8"), (slots, 2))  # type: ignore[assignment]
        self._columns = [as_words(column) for column in columns]
        self.row_bytes = sum(column.nbytes for column in columns) // slots
        """Bytes of a row with its link."""

    def seal(self, first_key: int, count: int, origin: int) -> None:
        """Store checksums for rows that were just written. ``origin`` is their `origin_word`, or 0 without a writer."""
        first = first_key % len(self._words)
        checksum_kernels.store_origins(self._words, first, count, np.uint64(origin))
        checksum_kernels.store_checksums(self._words, first, self._checksums(first_key, count))

    def whole(self, first_key: int, count: int) -> NDArray[np.bool_]:
        """Return bool[count]: whether each row's checksum matches its key and content."""
        return np.equal(self.of(np.arange(first_key, first_key + count)), self._checksums(first_key, count))

    def of(self, keys: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the stored checksums of these rows, uint64[n]."""
        return np.take(self._words[:, 1], keys % self.slots)

    def origins(self, first_key: int, count: int) -> NDArray[np.uint64]:
        """Return uint64[count]: the origin words of the rows, see `inserts_in`."""
        return np.take(self._words[:, 0], np.arange(first_key, first_key + count) % self.slots)

    def erase(self, first_key: int, count: int) -> None:
        """Invalidate the checksums of rows that are not live; ``count`` is at most the number of slots."""
        slots = len(self._words)
        first = first_key % slots
        for sums in (self._words[first : first + count, 1], self._words[: max(0, first + count - slots), 1]):
            sums[sums != 0] = 0  # untouched slots are 0 and stay sparse

    def close(self) -> None:
        """Unmap the file."""
        del self._words
        self._columns.clear()
        self.file.close()

    def _checksums(self, first_key: int, count: int) -> NDArray[np.uint64]:
        first = first_key % len(self._words)
        sums = checksum_kernels.begin(self._words, first, first_key, count)
        for words in self._columns:
            checksum_kernels.take_in(words, first, sums)
        return sums


def as_words(column: Array) -> Array:
    """View a column as unsigned words of the widest type whose size divides the size of a row."""
    row_bytes = column.nbytes // len(column)
    width = next(width for width in (8, 4, 2, 1) if row_bytes % width == 0)
    return column.view(np.dtype(f"<u{width}"))
