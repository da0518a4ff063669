"""Restores tables from checkpoints, after verifying the checksum of every file."""

from __future__ import annotations

import errno
import shutil
import zlib
from functools import partial
from pathlib import Path

import numpy as np
from replay_proto.framing import Array
from replay_proto.layout import column_file

from replay_server.checkpoint.manifest import (
    MANIFEST_FILE,
    CheckpointManifest,
    DamagedCheckpointError,
    TableManifest,
    unless_removed,
)
from replay_server.checkpoint.writing import PRIORITIES_FILE, WRITERS_FILE
from replay_server.errors import FatalError
from replay_server.storage.row_store import store_in_ring
from replay_server.storage.table_directory import TableDirectory

_CHUNK_BYTES = 4 << 20


class RestoreError(FatalError):
    """A checkpoint cannot be restored here; the message says why."""


def verify(folder: Path) -> CheckpointManifest:
    """Verify the checksums of a checkpoint.

    Raises:
        DamagedCheckpointError: a file is corrupt; the message names the first such file.
        CheckpointRemovedError: the checkpoint was removed while it was read.
    """
    with unless_removed(folder):
        manifest = CheckpointManifest.load(folder)
        for table in manifest.tables:
            for file in table.files:
                path = folder / table.config.name / file.name
                try:
                    size, crc32 = _measured(path)
                except OSError as error:
                    raise DamagedCheckpointError(path, error.strerror or str(error)) from error
                if (size, crc32) != (file.size, file.crc32):
                    raise DamagedCheckpointError(
                        path, f"expected {file.size} bytes of checksum {file.crc32:08x}, found {size} of {crc32:08x}"
                    )
        return manifest


def restore(folder: Path, tables: Path, *, checked: bool = False) -> CheckpointManifest:
    """Restore all tables of a checkpoint into the directory ``tables``. If that fails, restore none.

    If ``checked``, the restored tables have checksums.

    Raises:
        DamagedCheckpointError: a file is corrupt.
        RestoreError: ``folder`` is not a checkpoint, or a table already exists.
        CheckpointRemovedError: the checkpoint was removed while it was read.
        NoSpaceError: there is not enough space.
    """
    if not (folder / MANIFEST_FILE).is_file():
        fault = no_checkpoint(folder)
        raise RestoreError(f"restore: expected the directory of a checkpoint, got {str(folder)!r}, which {fault}")
    manifest = verify(folder)
    existing = [table.config.name for table in manifest.tables if (tables / table.config.name).exists()]
    if existing:
        raise RestoreError(
            f"{folder}: table {existing[0]!r} already exists in {tables}; restore into an empty --data-dir, or start "
            "without --restore"
        )
    made: list[Path] = []
    try:
        for table in manifest.tables:
            fill = partial(_fill, folder / table.config.name, table)
            with unless_removed(folder):
                directory = TableDirectory.create(tables, table.config, uid=table.uid, checked=checked, fill=fill)
            made.append(directory.folder)
            directory.close()
    except BaseException:
        # Remove all tables restored so far: they would block the next attempt.
        for path in made:
            shutil.rmtree(path, ignore_errors=True)
        raise
    return manifest


def no_checkpoint(folder: Path) -> str:
    """Say why a path is not the directory of a checkpoint."""
    if folder.is_dir():
        return f"has no {MANIFEST_FILE}"
    return "is not a directory" if folder.exists() else "is missing"


def _measured(path: Path) -> tuple[int, int]:
    size = crc32 = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            size += len(chunk)
            crc32 = zlib.crc32(chunk, crc32)
    return size, crc32


def _fill(folder: Path, table: TableManifest, directory: TableDirectory) -> None:
    """Copy a table from a checkpoint to its new directory; each row goes into the slot of its key."""
    directory.rows.reserve(table.state.floor, table.size)
    for index, ring in enumerate(directory.rows.values()):
        _fill_ring(folder / column_file(index), table, ring)
    _fill_ring(folder / PRIORITIES_FILE, table, directory.priorities)
    directory.header.restore(table.state)
    directory.writers.load(np.fromfile(folder / WRITERS_FILE, np.uint8), table.state.inserted)
    directory.flush()


def _fill_ring(path: Path, table: TableManifest, ring: Array) -> None:
    row_bytes = ring.nbytes // len(ring)
    if path.stat().st_size != table.size * row_bytes:
        raise OSError(errno.EIO, f"expected {table.size} rows of {row_bytes} bytes", str(path))
    key, row = table.state.floor, ring.shape[1:]
    with path.open("rb") as file:
        while chunk := file.read(max(1, _CHUNK_BYTES // row_bytes) * row_bytes):
            values = np.frombuffer(chunk, ring.dtype).reshape(-1, *row)
            store_in_ring(ring, key % len(ring), values)
            key += len(values)
