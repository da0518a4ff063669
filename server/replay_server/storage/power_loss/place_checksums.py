"""Checksums of the values of mutable columns, which detect values torn by a power loss.

Each place of a slot has one word: a checksum of the row's own checksum, its values in all mutable columns in that
place, and the version that they belong to; see `row_checksums`. One of the two places is always intact: a row is
updated at most once between two syncs, so the values of the last sync stay where they are until those of the update are
on disk. Then, the older ones are invalidated. The row's checksum distinguishes its values from those of a lost row
whose key was used again.

`Periods` numbers the times between syncs. A row that was updated in a period whose sync has not ended waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from replay_server.files.mapped_file import MappedFile
from replay_server.storage.format import PLACE_CHECKSUM_BYTES, PLACE_CHECKSUMS_FILE
from replay_server.storage.power_loss.checksum_kernels import compile_checksums, take_in, with_words
from replay_server.storage.power_loss.row_checksums import RowChecksums, as_words
from replay_server.storage.rings import MutableRing, Slots, Versions

_NONE: Final = -2
"""Stands for the version of a row without an intact one."""


class Periods:
    """Which rows may be updated: those that were not updated since the last sync."""

    def __init__(self, slots: int) -> None:
        """Start after an unknown number of updates, so that all rows wait for the first sync."""
        self._updated_in = np.zeros(slots, np.int64)
        self._current = 0
        self._synced = -1
        self.is_awaited = False
        """Whether an update waits for the next sync."""

    def begin_sync(self) -> int:
        """Begin a new period, and return the number of the one that ends."""
        self._current += 1
        self.is_awaited = False
        return self._current - 1

    def end_sync(self, period: int) -> None:
        """Record that all updates until the end of this period are on disk. May run in any thread."""
        self._synced = max(self._synced, period)

    def may_update(self, slots: Slots) -> bool:
        """Whether these rows may be updated now; if not, the next sync begins soon."""
        may: bool = bool((self._updated_in.take(slots) <= self._synced).all())
        self.is_awaited |= not may
        return may

    def updated(self, slots: Slots) -> None:
        """Record an update."""
        self._updated_in[slots] = self._current

    def updated_until(self, period: int, slots: int) -> Slots:
        """Return which of the first ``slots`` slots were updated last in this period; at first, all of them."""
        updated_in = self._updated_in[:slots]
        return np.flatnonzero((updated_in > self._synced) & (updated_in <= period))


class PlaceChecksums:
    """The checksums of both places of each slot."""

    def __init__(
        self, folder: Path, rings: Sequence[MutableRing], versions: Versions, rows: RowChecksums, *, create: bool
    ) -> None:
        """Map the checksums of the table in ``folder``; ``rings`` are its mutable columns."""
        slots = rows.slots
        compile_checksums()
        self.file = MappedFile(folder / PLACE_CHECKSUMS_FILE, slots * PLACE_CHECKSUM_BYTES, create=create)
        self._words: NDArray[np.uint64] = self.file.view(np.dtype("<u8"), (2 * slots,))  # type: ignore[assignment]
        self._columns = [as_words(ring.places) for ring in rings]
        self._versions = versions
        self._rows = rows
        self._slots = slots
        self.periods = Periods(slots)

    def seal(self, keys: NDArray[np.int64], *, beside: bool = False) -> None:
        """Store checksums of the current values of sealed rows; if ``beside``, of the next version's."""
        versions = self._versions.of(keys % self._slots) + int(beside)
        places = self._places(keys, versions)
        self._words[places] = with_words(self._sums(keys, places), versions)

    def forget_older(self, period: int, inserted: int) -> None:
        """Invalidate the values before the updates of a period, whose values are on disk now, and sync that.

        Otherwise, a row whose newest values are overwritten by those of a later row would get its older ones.
        ``inserted`` is the number of rows ever inserted; the space of slots without rows is not reserved.
        """
        slots = self.periods.updated_until(period, min(inserted, self._slots))
        self._words[self._versions.current(slots) ^ 1] = 0
        self.file.sync()

    def settle(self, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Make an intact version of each row current. The stored version may be older or newer than the values.

        The other place becomes invalid: it may have values of an update that is lost now, whose version comes again.
        ``keys``, int64[n], are of rows whose own checksums match. Return bool[n]: whether each has an intact version.
        """
        stored = self._versions.of(keys % self._slots)
        found = np.full(len(keys), _NONE)
        for difference in (1, -1, 0):  # of several, the last one counts
            versions = stored + difference
            found = np.where(self._are_whole(keys, versions), versions, found)
        is_whole: NDArray[np.bool_] = found != _NONE
        self._versions.set(keys[is_whole] % self._slots, found[is_whole])
        self._words[self._places(keys[is_whole], found[is_whole] + 1)] = 0
        return is_whole

    def close(self) -> None:
        """Unmap the file."""
        del self._words
        self._columns.clear()
        self.file.close()

    def _are_whole(self, keys: NDArray[np.int64], versions: NDArray[np.int64]) -> NDArray[np.bool_]:
        places = self._places(keys, versions)
        return np.equal(self._words[places], with_words(self._sums(keys, places), versions))

    def _places(self, keys: NDArray[np.int64], versions: NDArray[np.int64]) -> Slots:
        return 2 * (keys % self._slots) + (versions & 1)

    def _sums(self, keys: NDArray[np.int64], places: Slots) -> NDArray[np.uint64]:
        sums = self._rows.of(keys)
        for words in self._columns:
            take_in(words[places], 0, sums)
        return sums
