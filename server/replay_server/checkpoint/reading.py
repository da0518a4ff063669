"""Restores tables from checkpoints, after verifying the checksum of every file: all tables of a checkpoint, or none."""

from __future__ import annotations

import errno
import logging
import math
import shutil
import threading
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from replay_proto.framing import Array
from replay_proto.layout import column_file

from replay_server.checkpoint.manifest import (
    CheckpointManifest,
    DamagedCheckpointError,
    TableManifest,
    unless_removed,
)
from replay_server.errors import FatalError
from replay_server.files.long_work import LongWork
from replay_server.files.mapped_file import MappedFile
from replay_server.files.memory_limit import MemoryLimit, is_in_memory
from replay_server.storage import restored_tables
from replay_server.storage.format import CHECKPOINT_MANIFEST_FILE, PRIORITIES_FILE, WRITERS_FILE
from replay_server.storage.rings import store_in_ring
from replay_server.storage.table_directory import TableDirectory, empty_bytes

log = logging.getLogger(__name__)

_CHUNK_BYTES = 4 << 20
_SYNC_BYTES = 64 << 20
"""Bytes restored between syncs, so that no sync takes long: a thread that syncs cannot be stopped."""


class RestoreError(FatalError):
    """A checkpoint cannot be restored here; the message says why."""


def verify(folder: Path, work: LongWork | None = None) -> CheckpointManifest:
    """Verify the checksums of a checkpoint; ``work`` counts the bytes read.

    Raises:
        DamagedCheckpointError: a file is corrupt; the message names the first such file.
        CheckpointRemovedError: the checkpoint was removed while it was read.
        StoppedError: ``work`` was stopped.
    """
    work = work or LongWork(f"verifying {folder}")
    with unless_removed(folder):
        manifest = CheckpointManifest.load(folder)
        work.total_bytes = work.total_bytes or manifest.nbytes
        for table in manifest.tables:
            for file in table.files:
                path = folder / table.config.name / file.name
                try:
                    size, crc32 = _measured(path, work)
                except OSError as error:
                    raise DamagedCheckpointError(path, error.strerror or str(error)) from error
                if (size, crc32) != (file.size, file.crc32):
                    raise DamagedCheckpointError(
                        path, f"expected {file.size} bytes of checksum {file.crc32:08x}, found {size} of {crc32:08x}"
                    )
        return manifest


def resume(tables: Path) -> CheckpointManifest | None:
    """Complete a restore whose server ended before it served: all of its tables were restored.

    Return the manifest of the checkpoint; None if there was no such restore.
    """
    left = restored_tables.place(tables)
    if left is None or not (left / CHECKPOINT_MANIFEST_FILE).is_file():
        return None
    return CheckpointManifest.load(left)


def restore(
    folder: Path,
    tables: Path,
    *,
    checked: bool = False,
    stopped: threading.Event | None = None,
    memory: MemoryLimit | None = None,
) -> CheckpointManifest:
    """Restore all tables of a checkpoint into the directory ``tables``. If that fails, restore none.

    They appear all at once; see `replay_server.storage.restored_tables`. If the checkpoint has just been restored, and
    no server has served its tables yet, there is nothing left to do.

    If ``checked``, the restored tables have checksums. Setting ``stopped`` ends the work early. ``memory`` limits the
    tables, if they are in memory.

    Raises:
        RestoreError: ``folder`` is not a checkpoint, or a table already exists.
        NoSpaceError: there is not enough space.
        DamagedCheckpointError, CheckpointRemovedError, StoppedError: as for `verify`.
    """
    if not (folder / CHECKPOINT_MANIFEST_FILE).is_file():
        fault = no_checkpoint(folder)
        raise RestoreError(f"restore: expected the directory of a checkpoint, got {str(folder)!r}, which {fault}")
    before, manifest = resume(tables), CheckpointManifest.load(folder)
    if before is not None and before.to_bytes() == manifest.to_bytes():
        log.info("%s was restored by an earlier start", folder)
        return manifest
    restored_tables.settle(tables)
    existing = [table.config.name for table in manifest.tables if (tables / table.config.name).exists()]
    if existing:
        raise RestoreError(
            f"{folder}: table {existing[0]!r} already exists in {tables}; restore into an empty --data-dir, or start "
            "without --restore"
        )
    work = LongWork(f"restoring {folder}", stopped)
    work.total_bytes = 2 * manifest.nbytes  # each file is read twice
    verify(folder, work)
    with restored_tables.all_at_once(tables) as stage:
        for table in manifest.tables:
            limit = memory if is_in_memory(tables) else None
            if limit is not None:
                limit.check(empty_bytes(table.config))
            fill = partial(_fill, folder / table.config.name, table, work, memory=limit)
            with unless_removed(folder):
                TableDirectory.create(stage, table.config, uid=table.uid, checked=checked, fill=fill).close()
        with unless_removed(folder):
            shutil.copyfile(folder / CHECKPOINT_MANIFEST_FILE, stage / CHECKPOINT_MANIFEST_FILE)
    return manifest


def no_checkpoint(folder: Path) -> str:
    """Say why a path is not the directory of a checkpoint."""
    if folder.is_dir():
        return f"has no {CHECKPOINT_MANIFEST_FILE}"
    return "is not a directory" if folder.exists() else "is missing"


def _measured(path: Path, work: LongWork) -> tuple[int, int]:
    size = crc32 = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            size += len(chunk)
            crc32 = zlib.crc32(chunk, crc32)
            work.advance(len(chunk))
    return size, crc32


def _fill(
    folder: Path, table: TableManifest, work: LongWork, directory: TableDirectory, *, memory: MemoryLimit | None = None
) -> None:
    """Copy a table from a checkpoint to its new directory; each row goes into the slot of its key."""
    directory.rows.reserve(table.state.floor, table.size, memory)
    for index, ring in enumerate(directory.rows.rings()):
        path, row = folder / column_file(index), (ring.column.dtype, ring.column.shape)
        _fill_ring(path, table, row, ring.store, ring.file, work)
    path, priorities = folder / PRIORITIES_FILE, directory.priorities
    _fill_ring(path, table, (priorities.dtype, ()), partial(store_in_ring, priorities), directory.priorities_file, work)
    directory.header.set(table.state)
    directory.writers.load(np.fromfile(folder / WRITERS_FILE, np.uint8), table.state.inserted)
    directory.flush()


def _fill_ring(
    path: Path,
    table: TableManifest,
    row: tuple[np.dtype[np.generic], tuple[int, ...]],
    store: Callable[[int, Array], None],
    file: MappedFile,
    work: LongWork,
) -> None:
    """Store the values of one column, of this dtype and shape; ``store`` takes the first slot and the values."""
    dtype, shape = row
    row_bytes = dtype.itemsize * math.prod(shape)
    if path.stat().st_size != table.size * row_bytes:
        raise OSError(errno.EIO, f"expected {table.size} rows of {row_bytes} bytes", str(path))
    key = table.state.floor
    unsynced = 0
    with path.open("rb") as source:
        while chunk := source.read(max(1, _CHUNK_BYTES // row_bytes) * row_bytes):
            values = np.frombuffer(chunk, dtype).reshape(-1, *shape)
            store(key % table.config.slots, values)
            key += len(values)
            work.advance(len(chunk))
            unsynced += len(chunk)
            if unsynced >= _SYNC_BYTES:
                file.sync()
                unsynced = 0
