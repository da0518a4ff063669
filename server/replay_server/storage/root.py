"""The directory of a server's tables: durable, or temporary in memory.

A server holds a lock on its root while it lives. A root in memory whose lock nobody holds belonged to a server
that is gone; the next one sweeps it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from replay_server.files import held_folders, trust
from replay_server.storage.power_loss.boot_mark import BOOT_FILE

_TABLES = "tables"
TEMPORARY = "replay-server-"
"""What the names of roots in memory begin with."""


class Root:
    """A locked directory with a place for tables."""

    def __init__(self, path: Path, lock: int, *, temporary: bool) -> None:
        """Begin; use `durable` or `in_memory`. ``lock`` is the descriptor that holds the directory."""
        self.path = path
        self.temporary = temporary
        self._lock = lock
        self.tables = path / _TABLES
        self.tables.mkdir(mode=0o700, exist_ok=True)

    @classmethod
    def durable(cls, path: Path) -> Root:
        """The user's directory: tables in it outlive the server. It is made if there is none.

        Raises:
            InUseError: if another server holds it.
            OSError: if it cannot be made.
        """
        return cls(path, held_folders.lock(path, "--data-dir"), temporary=False)

    @staticmethod
    def check_durable(path: Path) -> None:
        """Make sure that no other user of this machine can change, or has made, what a durable root is.

        Raises:
            UntrustedError: if one can; see `replay_server.files.trust`.
            OSError: if it cannot be made or read.
        """
        trust.make_folder(path)
        tables = path / _TABLES
        trust.check_entries([path / held_folders.LOCK, path / BOOT_FILE, tables])
        if tables.exists():
            trust.check_tree(tables)

    @classmethod
    def in_memory(cls, parent: Path) -> Root:
        """A directory of the server's own below ``parent``, removed at the end.

        Raises:
            OSError: if it cannot be made.
        """
        held_folders.sweep(parent, TEMPORARY)
        return cls(*held_folders.make(parent, TEMPORARY), temporary=True)

    def close(self) -> None:
        """Give the directory back; a temporary one is removed."""
        if self.temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
