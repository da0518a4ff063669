"""Writes snapshots to files in a worker thread: oldest rows first, with a checksum and a sync per file."""

from __future__ import annotations

import io
import os
import threading
import zlib
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
from replay_proto.framing import Array
from replay_proto.layout import column_file

from replay_server.checkpoint.manifest import CheckpointManifest, FileManifest, TableManifest
from replay_server.checkpoint.snapshot import TableSnapshot
from replay_server.errors import StoppedError
from replay_server.files.durable_files import sync_path, write_all
from replay_server.storage.format import CHECKPOINT_MANIFEST_FILE, PRIORITIES_FILE, WRITERS_FILE
from replay_server.storage.shard_map import ShardMap

_CHUNK_BYTES = 4 << 20
_SYNC_BYTES = 32 << 20
"""Bytes written between syncs: too many dirty pages would slow down stores to mapped files."""


class ChecksummedFile:
    """A file with a checksum, written from start to end; `begin_anew` empties it."""

    def __init__(self, path: Path) -> None:
        """Create the file; it must not exist."""
        self._name = path.name
        self._file = io.FileIO(path, "x", opener=partial(os.open, mode=0o600))
        self._size = self._crc32 = self._unsynced = 0

    def begin_anew(self) -> None:
        """Empty the file."""
        self._file.seek(0)
        self._file.truncate()
        self._size = self._crc32 = self._unsynced = 0

    def write(self, values: Array) -> None:
        """Append the bytes of an array."""
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        self._crc32 = zlib.crc32(data, self._crc32)
        write_all(self._file.fileno(), data)
        self._size += values.nbytes
        self._unsynced += values.nbytes
        if self._unsynced >= _SYNC_BYTES:
            os.fdatasync(self._file.fileno())
            self._unsynced = 0

    def finish(self) -> FileManifest:
        """Sync the file and return its manifest."""
        os.fsync(self._file.fileno())
        return FileManifest(self._name, self._size, self._crc32)

    def close(self) -> None:
        """Close the file, complete or not."""
        self._file.close()


def write_checkpoint(
    folder: Path,
    snapshots: Sequence[TableSnapshot],
    taken_s: float,
    cancelled: threading.Event,
    shards: ShardMap | None = None,
    shard_id: int | None = None,
) -> CheckpointManifest:
    """Write and sync all files of a checkpoint in the empty directory ``folder``, unless ``cancelled`` is set.

    ``shards`` is the server's shard map, and ``shard_id`` the id of its shard, if known.
    """
    manifest = CheckpointManifest(
        taken_s, [_write_table(folder, snapshot, cancelled) for snapshot in snapshots], shards, shard_id
    )
    write_manifest(folder, manifest)
    return manifest


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Write and sync the manifest of the checkpoint in ``folder``, after all of its other files."""
    write_file(folder / CHECKPOINT_MANIFEST_FILE, np.frombuffer(manifest.to_bytes(), np.uint8))
    sync_path(folder)


def write_file(path: Path, values: Array) -> FileManifest:
    """Write and sync a file, and return its manifest."""
    with closing(ChecksummedFile(path)) as file:
        file.write(values)
        return file.finish()


def _write_table(parent: Path, snapshot: TableSnapshot, cancelled: threading.Event) -> TableManifest:
    folder = parent / snapshot.config.name
    folder.mkdir(mode=0o700)
    files = _write_columns(folder, snapshot, cancelled)
    files.append(write_file(folder / PRIORITIES_FILE, snapshot.priorities[snapshot.left_out :]))
    files.append(write_file(folder / WRITERS_FILE, snapshot.writers))
    sync_path(folder)
    state = snapshot.state.without_rows_below(snapshot.first_key)
    return TableManifest(snapshot.config, snapshot.uid, state, snapshot.left_out, files)


def _write_columns(folder: Path, snapshot: TableSnapshot, cancelled: threading.Event) -> list[FileManifest]:
    """Write the rows in chunks, each with all columns.

    If inserts overwrite rows before they are copied, the files are emptied and written again from a later row, because
    the rows of a checkpoint must be consecutive.
    """
    rows_at_once = max(1, _CHUNK_BYTES // snapshot.config.schema.row_bytes)
    files = [ChecksummedFile(folder / column_file(index)) for index in range(len(snapshot.rows.copy(0, 0)))]
    try:
        key = snapshot.first_key
        while key < snapshot.state.inserted:
            if cancelled.is_set():
                raise StoppedError("writing a checkpoint")
            count = min(rows_at_once, snapshot.state.inserted - key)
            columns = snapshot.rows.copy(key, count)
            if key < snapshot.rows.oldest_whole:
                # Skip some intact rows, too: inserts are about to overwrite them.
                key = min(snapshot.rows.oldest_whole + snapshot.config.slack, snapshot.state.inserted)
                snapshot.first_key = key
                for file in files:
                    file.begin_anew()
                continue
            for file, values in zip(files, columns, strict=True):
                file.write(values)
            key += count
        return [file.finish() for file in files]
    finally:
        for file in files:
            file.close()
