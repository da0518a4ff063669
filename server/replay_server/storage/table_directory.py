"""A table as a directory: a manifest, a header, a file per column, the priorities and the writers' records.

    <root>/lock                     locked by the server that owns the root
    <root>/owner.json               which server that is; see `replay_server.files.owner`
    <root>/tables/<name>/
        manifest.json               format version, uid, config
        header.bin                  write_horizon and the table's state
        column-000.bin ...          the columns in the schema's order, then the links (stream, episode, step)
        mutable-002.bin ...         instead, for mutable columns: two places for each slot
        versions.bin                int64[slots]: the version of each slot; only with mutable columns
        priorities.bin              float64[slots]
        writers.bin                 recent inserts of every writer
        deliveries.bin              recent draws of every reader; only in queues
        checksums.bin               uint64[slots, 2], per row; only in format versions 4, 6 and 8
        place_checksums.bin         uint64[slots, 2], of mutable columns; only in format version 8
        synced.bin                  the last state that is fully on disk; only in format versions 4, 6 and 8

A directory gets its name in the last step of creation, and loses it in the first step of removal. So a directory with
a table's name is never half-created or half-removed.
"""

from __future__ import annotations

import asyncio
import errno
import json
import secrets
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from replay_proto.layout import VERSION_BYTES

from replay_server.errors import FatalError
from replay_server.files.durable_files import rename_durably, replace_file, sync_path
from replay_server.files.mapped_file import MappedFile, NoSpaceError, tells_full
from replay_server.storage.delivery_log import DELIVERY_LOG_BYTES, DeliveryLog
from replay_server.storage.format import (
    CHECKED_MUTABLE_TABLE_VERSION,
    CHECKED_STEPS_TABLE_VERSION,
    CHECKED_TABLE_VERSION,
    CHECKED_VERSIONS,
    CHECKSUM_BYTES,
    CHECKSUMS_FILE,
    MUTABLE_TABLE_VERSION,
    PLACE_CHECKSUM_BYTES,
    PLACE_CHECKSUMS_FILE,
    PRIORITIES_FILE,
    PRIORITY_BYTES,
    STEPS_TABLE_VERSION,
    SYNC_POINT_FILE,
    TABLE_MANIFEST_FILE,
    TABLE_VERSION,
    TABLE_VERSIONS,
    UID_BYTES,
)
from replay_server.storage.header import Header
from replay_server.storage.permissions import FOLDER_MODE
from replay_server.storage.power_loss.recovery import recover
from replay_server.storage.power_loss.sync_point import SYNC_POINT_BYTES, SyncPoint, SyncPoints
from replay_server.storage.row_store import RowStore
from replay_server.storage.table_config import TableConfig
from replay_server.storage.writer_records import WRITER_RECORDS_BYTES, WriterRecords

_SEALED_AT_ONCE = 1 << 17
_STORED_AT_ONCE = 16 << 20
"""Bytes that `TableDirectory.store_anew` handles per step; a step takes a few milliseconds."""
UNFINISHED = ".new-"
"""Name prefix of folders that are being created."""
_REMOVED = ".dropped-"


class DamagedTableError(FatalError):
    """This version cannot read a table's directory; the message names the file and the fault."""


def full_bytes(config: TableConfig, *, checked: bool = False) -> int:
    """Return the size in bytes of a full table's files, to within a few kilobytes.

    If ``checked``, this includes checksums and sync points.
    """
    per_row = config.schema.row_bytes + config.link.row_bytes + PRIORITY_BYTES + (CHECKSUM_BYTES if checked else 0)
    if mutable := config.schema.mutable.values():
        per_row += sum(column.row_bytes for column in mutable) + VERSION_BYTES
        per_row += PLACE_CHECKSUM_BYTES if checked else 0
    return config.slots * per_row + _requests_bytes(config) + (SYNC_POINT_BYTES if checked else 0)


def empty_bytes(config: TableConfig) -> int:
    """Return the bytes that are reserved for a table without rows, to within a few kilobytes."""
    return config.slots * PRIORITY_BYTES + _requests_bytes(config)


def _requests_bytes(config: TableConfig) -> int:
    """Return the bytes of the records of recent requests."""
    return WRITER_RECORDS_BYTES + (DELIVERY_LOG_BYTES if config.is_queue else 0)


class TableDirectory:
    """The mapped files of one table."""

    def __init__(self, folder: Path, config: TableConfig, uid: bytes, *, create: bool, checked: bool = False) -> None:
        """Map the files in ``folder``; use `create` or `open` instead."""
        self.folder = folder
        self.config = config
        self.uid = uid
        self.header = Header(
            folder,
            most_live=config.most_live,
            times=config.times,
            numbers_per_row=config.numbers_per_row,
            create=create,
        )
        self.rows = RowStore(folder, config.schema, config.slots, create=create, link=config.link, checked=checked)
        self.priorities_file = MappedFile(folder / PRIORITIES_FILE, config.slots * PRIORITY_BYTES, create=create)
        """The file of `priorities`."""
        # The index may write to any slot at any time, so reserve all space now.
        self.priorities_file.reserve(self.priorities_file.size)
        self.priorities: NDArray[np.float64] = self.priorities_file.view(  # type: ignore[assignment]
            np.dtype("<f8"), (config.slots,)
        )
        self.writers = WriterRecords(folder, inserted=self.header.inserted, create=create)
        self.deliveries: DeliveryLog | None = None
        """Recent draws; None unless the table is a queue."""
        if config.is_queue:
            self.deliveries = DeliveryLog(folder, delivered=self.header.state.delivered, create=create)
        self._sync_points = SyncPoints(folder, create=create) if checked else None
        self._is_stored_anew = False
        self.storing_beside = asyncio.Lock()
        """Held while a worker thread stores rows, and during `store_anew`, so that the two never overlap."""
        self.in_use = asyncio.Lock()
        """Held while a worker thread uses the files, to delay their removal."""
        self._rows_synced_to: tuple[int, int] | None = None
        """`_rows_stored` at the last sync. None if there was no sync since opening, or if the last one failed."""
        self._rows_stored = (0, 0)
        """``header.inserted``, and the number of updates of rows, when the latest sync point was taken."""
        self._period = 0
        if checked:
            self._erase_uncommitted()

    @classmethod
    def create(
        cls,
        parent: Path,
        config: TableConfig,
        *,
        uid: bytes | None = None,
        checked: bool = False,
        fill: Callable[[TableDirectory], None] = lambda directory: None,
    ) -> TableDirectory:
        """Create a table's directory below ``parent``; ``fill`` can store rows before the directory gets its name.

        If ``checked``, rows have checksums, and the table has sync points.

        Raises:
            NoSpaceError: there is not enough space; nothing is left behind.
        """
        uid = uid or secrets.token_bytes(UID_BYTES)
        unfinished = parent / f"{UNFINISHED}{uid.hex()}"
        directory: TableDirectory | None = None
        try:
            unfinished.mkdir(mode=FOLDER_MODE)
            (unfinished / TABLE_MANIFEST_FILE).write_text(_manifest(uid, config, checked=checked), "utf-8")
            directory = cls(unfinished, config, uid, create=True, checked=checked)
            fill(directory)
            if checked:
                directory._seal_live()
                directory.sync(directory.sync_point())
                sync_path(unfinished / TABLE_MANIFEST_FILE)
                sync_path(unfinished)
            name = parent / config.name
            directory.folder = rename_durably(unfinished, name) if checked else unfinished.rename(name)
        except BaseException as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            if tells_full(error):
                raise NoSpaceError(errno.ENOSPC, "no room for a table", str(parent)) from error
            raise
        return directory

    @classmethod
    def open(cls, folder: Path, *, may_be_torn: bool = False, stopped: threading.Event | None = None) -> TableDirectory:
        """Map the files of an existing table.

        If ``may_be_torn`` is set and the table has checksums, first recover its valid rows. Setting ``stopped``
        ends that.

        Raises:
            StoppedError: ``stopped`` was set.
            DamagedTableError: the files do not match the manifest.
        """
        path = folder / TABLE_MANIFEST_FILE
        try:
            manifest = json.loads(path.read_text("utf-8"))
            version = manifest["format_version"]
            if version not in TABLE_VERSIONS:
                raise ValueError(
                    f"expected format version {TABLE_VERSION} to {TABLE_VERSIONS[-1]}, found {version}; use "
                    "the version of replay-server that created it, or another --data-dir"
                )
            if manifest["crc32"] != _checksum(manifest):
                raise ValueError("its checksum does not match its content")
            config = TableConfig.from_json(manifest["config"])
            uid = bytes.fromhex(manifest["uid"])
            if len(uid) != UID_BYTES:
                raise ValueError(f"expected a uid of {UID_BYTES} bytes, found {len(uid)}")
            if config.name != folder.name:
                raise ValueError(f"it belongs to table {config.name!r}")
        except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DamagedTableError(f"{path}: {error}") from error
        checked = version in CHECKED_VERSIONS
        try:
            if checked and may_be_torn:
                recover(folder, config, stopped)
            return cls(folder, config, uid, create=False, checked=checked)
        except (OSError, ValueError) as error:
            raise DamagedTableError(str(error)) from error

    @property
    def reserved_bytes(self) -> int:
        """Bytes reserved so far for the table's files."""
        others = SYNC_POINT_BYTES if self.is_checked else 0
        if self.deliveries is not None:
            others += self.deliveries.file.held_bytes
        return self.rows.reserved_bytes + self.priorities_file.held_bytes + self.writers.file.held_bytes + others

    @property
    def is_checked(self) -> bool:
        """Whether rows have checksums, and the table is synced periodically."""
        return self._sync_points is not None

    @property
    def lost(self) -> int:
        """Rows lost to power losses since the table was created."""
        newest = None if self._sync_points is None else self._sync_points.newest
        return 0 if newest is None else newest.lost

    def sync_point(self) -> SyncPoint:
        """Return the current state as a sync point, to pass to `sync` before the next call."""
        checksums = self.rows.place_checksums
        self._period = 0 if checksums is None else checksums.periods.begin_sync()
        self._rows_stored = (self.header.inserted, self.rows.updates)
        return SyncPoint(self.header.state, self.lost, self.writers.used())

    @property
    def unsynced(self) -> int:
        """Rows inserted since the last sync point; 0 without checksums."""
        newest = None if self._sync_points is None else self._sync_points.newest
        return 0 if newest is None else self.header.inserted - newest.state.inserted

    @property
    def has_to_be_stored_anew(self) -> bool:
        """Whether `store_anew` must run: a sync failed, and the next one might skip pages that were not written."""
        return self.header.sync_failed and not self._is_stored_anew

    def store_anew(self) -> Iterator[None]:
        """Mark all pages as changed, piece by piece, so that the next sync writes them.

        No other thread may store until this has ended, because its stores could be lost.

        Raises:
            NoSpaceError: there is not enough space; call this again when there is.
        """
        self.rows.reserve(0, self.header.inserted)
        for file in self._files:
            for start in range(0, file.reserved, _STORED_AT_ONCE):
                file.store_anew(start, min(start + _STORED_AT_ONCE, file.reserved))
                yield
        self._is_stored_anew = True

    def sync(self, point: SyncPoint) -> None:
        """Sync all files, then store the sync point. May run in any thread while the table is in use.

        If nothing was inserted or updated since the last sync, skip the files of rows.

        Raises:
            OSError: the sync failed. The last sync point stays valid; call `store_anew` before the next sync.
        """
        assert self._sync_points is not None
        assert not self.has_to_be_stored_anew
        try:
            rows_stored, period = self._rows_stored, self._period
            if self._rows_synced_to != rows_stored:
                for file in self.rows.files():
                    file.sync()
            for file in self._other_files:
                file.sync()
            if self.rows.place_checksums is not None and self._rows_synced_to != rows_stored:
                self.rows.place_checksums.forget_older(period, point.state.inserted)
            self._sync_points.store(point)
        except BaseException:
            self._rows_synced_to = None
            self.header.sync_failed, self._is_stored_anew = True, False
            raise
        self._rows_synced_to = rows_stored
        if self.rows.place_checksums is not None:
            self.rows.place_checksums.periods.end_sync(period)
        self.header.sync_failed = self._is_stored_anew = False

    def add_checksums(self) -> None:
        """Add checksums. Call this only before the table is in use.

        Raises:
            NoSpaceError: there is not enough space; the table on disk is unchanged. Open it again.
            OSError: the files cannot be created.
        """
        # Discard leftovers of an earlier attempt: the manifest mentions checksums only once they are complete.
        self._remove_checksums()
        try:
            self._add_checksums()
        except BaseException as error:
            self._remove_checksums()
            if tells_full(error):
                raise NoSpaceError(errno.ENOSPC, "no room for checksums", str(self.folder)) from error
            raise

    def _remove_checksums(self) -> None:
        for name in (CHECKSUMS_FILE, PLACE_CHECKSUMS_FILE, SYNC_POINT_FILE):
            (self.folder / name).unlink(missing_ok=True)

    def _add_checksums(self) -> None:
        self.rows.add_checksums(self.folder)
        self.rows.reserve(0, self.header.inserted)
        self._seal_live()
        self._sync_points = SyncPoints(self.folder, create=True)
        self.write_out()
        replace_file(self.folder / TABLE_MANIFEST_FILE, _manifest(self.uid, self.config, checked=True))

    def flush(self) -> None:
        """Write stored data to disk. To survive a power loss, a table also needs a `sync`."""
        for file in self._files:
            file.flush()

    def write_out(self) -> None:
        """Write everything to disk. Nothing else may store until this returns."""
        if not self.is_checked:
            self.flush()
            return
        if self.has_to_be_stored_anew:
            for _ in self.store_anew():
                pass
        self.sync(self.sync_point())

    def close(self) -> None:
        """Unmap all files; the directory stays."""
        self.priorities = np.empty(0)
        self.priorities_file.close()
        self.rows.close()
        self.writers.close()
        if self.deliveries is not None:
            self.deliveries.close()
        self.header.close()
        if self._sync_points is not None:
            self._sync_points.close()

    @property
    def _files(self) -> Sequence[MappedFile]:
        """All mapped files except the sync points."""
        return (*self.rows.files(), *self._other_files)

    @property
    def _other_files(self) -> Sequence[MappedFile]:
        """Files that change even without inserts."""
        of_draws = () if self.deliveries is None else (self.deliveries.file,)
        return (self.priorities_file, self.writers.file, *of_draws, self.header.file)

    @property
    def _live(self) -> range:
        return range(self.header.oldest, self.header.inserted)

    def _seal_live(self) -> None:
        """Store checksums for live rows, which have none yet.

        These rows need no origin, because their inserts can no longer be retried.
        """
        live = self._live
        for first in range(live.start, live.stop, _SEALED_AT_ONCE):
            self.rows.seal(first, min(_SEALED_AT_ONCE, live.stop - first), origin=0)

    def _erase_uncommitted(self) -> None:
        """Invalidate uncommitted rows of a killed server, so that no recovery from a power loss brings them back."""
        assert self.rows.checksums is not None
        free = self.config.slots - len(self._live)
        self.rows.checksums.erase(self.header.inserted, min(free, self.config.slack))

    def hide(self) -> Path:
        """Rename the directory, and return its new path, which the caller deletes.

        So it stays removed even if deleting its files is interrupted. With checksums, this also syncs the directory
        above. After an `OSError`, the directory has its old name.
        """
        hidden = self.folder.with_name(f"{_REMOVED}{self.uid.hex()}")
        return rename_durably(self.folder, hidden) if self.is_checked else self.folder.rename(hidden)


def _manifest(uid: bytes, config: TableConfig, *, checked: bool) -> str:
    if config.schema.mutable:
        version = CHECKED_MUTABLE_TABLE_VERSION if checked else MUTABLE_TABLE_VERSION
    elif config.steps is None:
        version = CHECKED_TABLE_VERSION if checked else TABLE_VERSION
    else:
        version = CHECKED_STEPS_TABLE_VERSION if checked else STEPS_TABLE_VERSION
    manifest = {"format_version": version, "uid": uid.hex(), "config": config.to_json()}
    return json.dumps({**manifest, "crc32": _checksum(manifest)}, indent=2)


def _checksum(manifest: Mapping[str, Any]) -> int:
    content = {"uid": manifest["uid"], "config": manifest["config"]}
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def finished_tables(parent: Path) -> Iterator[Path]:
    """Yield the tables' directories below ``parent``, in order of name; delete half-created and half-removed ones."""
    for folder in sorted(parent.iterdir()):
        if folder.name.startswith((UNFINISHED, _REMOVED)):
            shutil.rmtree(folder, ignore_errors=True)
        elif folder.is_dir() and not folder.name.startswith("."):
            yield folder
