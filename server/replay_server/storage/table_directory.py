"""A table as a directory: a manifest, a header, a file per column, the priorities and the writers' records.

    <root>/lock                     held by the server that owns the root
    <root>/tables/<name>/
        manifest.json               format version, uid, config
        nonce                       random bytes: whoever echoes them can read the directory
        header.bin                  write_horizon, inserted, reset_floor
        column-000.bin ...          the columns in the schema's order, then each row's stream and episode
        priorities.bin              float64[slots]
        writers.bin                 recent inserts of every writer

A directory gets its name last when it is made, and loses it first when it is removed.
"""

from __future__ import annotations

import errno
import json
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from replay_proto.layout import NONCE_BYTES, NONCE_FILE

from replay_server.storage.header import Header
from replay_server.storage.mapped_file import MappedFile, NoSpaceError, tells_full
from replay_server.storage.permissions import FOLDER_MODE
from replay_server.storage.row_store import LINK_BYTES, RowStore
from replay_server.storage.writer_records import WRITER_RECORDS_BYTES, WriterRecords
from replay_server.table_config import TableConfig

FORMAT_VERSION = 1
UID_BYTES = 16
_MANIFEST = "manifest.json"
PRIORITIES_FILE = "priorities.bin"
_PRIORITY_BYTES = 8
_UNFINISHED = ".new-"
_REMOVED = ".dropped-"


class DamagedTableError(Exception):
    """A table's directory is not what this version can read; the message names the file and the fault."""


def full_bytes(config: TableConfig) -> int:
    """Bytes that the files of a table take once it is full, but for a few kilobytes."""
    per_row = config.schema.row_bytes + LINK_BYTES + _PRIORITY_BYTES
    return config.slots * per_row + WRITER_RECORDS_BYTES


class TableDirectory:
    """The mapped files of one table."""

    def __init__(self, folder: Path, config: TableConfig, uid: bytes, *, create: bool) -> None:
        """Map the files in ``folder``; use `create` or `open`."""
        self.folder = folder
        self.config = config
        self.uid = uid
        self.header = Header(folder, create=create)
        self.rows = RowStore(folder, config.schema, config.slots, create=create)
        self._priorities_file = MappedFile(folder / PRIORITIES_FILE, config.slots * _PRIORITY_BYTES, create=create)
        # The index stores to any slot of it at any time, so all of its space is reserved at once.
        self._priorities_file.reserve(self._priorities_file.size)
        self.priorities: NDArray[np.float64] = self._priorities_file.view(  # type: ignore[assignment]
            np.dtype("<f8"), (config.slots,)
        )
        self.nonce = _read_nonce(folder / NONCE_FILE)
        self.writers = WriterRecords(folder, inserted=self.header.inserted, create=create)

    @classmethod
    def create(
        cls,
        parent: Path,
        config: TableConfig,
        *,
        uid: bytes | None = None,
        fill: Callable[[TableDirectory], None] = lambda directory: None,
    ) -> TableDirectory:
        """Make the directory of a new table below ``parent``.

        Args:
            parent: of all tables.
            config: of the table.
            uid: of the table; None: a new one.
            fill: puts rows into it before it gets its name.

        Raises:
            NoSpaceError: if there is no room for it; nothing is left behind.
            OSError: if it cannot be made.
        """
        uid = uid or secrets.token_bytes(UID_BYTES)
        unfinished = parent / f"{_UNFINISHED}{uid.hex()}"
        try:
            unfinished.mkdir(mode=FOLDER_MODE)
            manifest = {"format_version": FORMAT_VERSION, "uid": uid.hex(), "config": config.to_json()}
            manifest["crc32"] = _checksum(manifest)
            (unfinished / _MANIFEST).write_text(json.dumps(manifest, indent=2), "utf-8")
            (unfinished / NONCE_FILE).write_bytes(secrets.token_bytes(NONCE_BYTES))
            directory = cls(unfinished, config, uid, create=True)
            fill(directory)
            directory.folder = unfinished.rename(parent / config.name)
        except BaseException as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            if tells_full(error):
                raise NoSpaceError(errno.ENOSPC, "no room for a table", str(parent)) from error
            raise
        return directory

    @classmethod
    def open(cls, folder: Path) -> TableDirectory:
        """Map the files of a table that was made before.

        Raises:
            DamagedTableError: if its files are not what its manifest says.
        """
        path = folder / _MANIFEST
        try:
            manifest = json.loads(path.read_text("utf-8"))
            if manifest["format_version"] != FORMAT_VERSION:
                raise ValueError(f"expected format version {FORMAT_VERSION}, found {manifest['format_version']}")
            if manifest.get("crc32", _checksum(manifest)) != _checksum(manifest):
                raise ValueError("its checksum is not that of its content")
            config = TableConfig.from_json(manifest["config"])
            uid = bytes.fromhex(manifest["uid"])
            if len(uid) != UID_BYTES:
                raise ValueError(f"expected a uid of {UID_BYTES} bytes, found {len(uid)}")
            if config.name != folder.name:
                raise ValueError(f"it belongs to a table called {config.name!r}")
        except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DamagedTableError(f"{path}: {error}") from error
        try:
            return cls(folder, config, uid, create=False)
        except (OSError, ValueError) as error:
            raise DamagedTableError(str(error)) from error

    @property
    def reserved_bytes(self) -> int:
        """Bytes that the table's files take so far."""
        return self.rows.reserved_bytes + self._priorities_file.reserved + self.writers.reserved_bytes

    def flush(self) -> None:
        """Write everything to the disk."""
        for file in (*self.rows.files(), self._priorities_file):
            file.flush()
        self.writers.flush()
        self.header.flush()

    def close(self) -> None:
        """Unmap everything; the directory stays."""
        self.priorities = np.empty(0)
        self._priorities_file.close()
        self.rows.close()
        self.writers.close()
        self.header.close()

    def hide(self) -> Path:
        """Take the directory's name away, so that it is gone for good even if its removal is cut short.

        Returns:
            Its new path, to be removed.
        """
        return self.folder.rename(self.folder.with_name(f"{_REMOVED}{self.uid.hex()}"))


def _checksum(manifest: Mapping[str, Any]) -> int:
    """Of what defines the table. Directories made by earlier versions have none."""
    content = {"uid": manifest["uid"], "config": manifest["config"]}
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _read_nonce(path: Path) -> bytes:
    nonce = path.read_bytes()
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"{path}: expected {NONCE_BYTES} bytes, found {len(nonce)}; the file is damaged")
    return nonce


def finished_tables(parent: Path) -> Iterator[Path]:
    """The directories of tables below ``parent``, in the order of their names; sweeps what is half made or removed."""
    for folder in sorted(parent.iterdir()):
        if folder.name.startswith((_UNFINISHED, _REMOVED)):
            shutil.rmtree(folder, ignore_errors=True)
        elif folder.is_dir() and not folder.name.startswith("."):
            yield folder
