"""The directory of a server's tables: durable, or temporary in memory.

A server locks its root while it runs. An unlocked root in memory is left over from a dead server; the next server
removes it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from replay_server.files import held_folders, trust
from replay_server.storage.power_loss.boot_mark import BOOT_FILE

_TABLES = "tables"
TEMPORARY = "replay-server-"
"""Name prefix of roots in memory."""


class Root:
    """A locked directory for tables."""

    def __init__(self, path: Path, lock: int, *, temporary: bool) -> None:
        """Use `durable` or `in_memory` instead. ``lock`` is the descriptor that locks the directory."""
        self.path = path
        self.temporary = temporary
        self._lock = lock
        self.tables = path / _TABLES
        self.tables.mkdir(mode=0o700, exist_ok=True)

    @classmethod
    def durable(cls, path: Path) -> Root:
        """Open the user's directory, or create it. Its tables outlive the server.

        Raises:
            InUseError: if another server has locked it.
            OSError: if it cannot be created.
        """
        return cls(path, held_folders.lock(path, "--data-dir"), temporary=False)

    @staticmethod
    def check_durable(path: Path) -> None:
        """Check that no other user of this machine owns or can modify a durable root.

        Raises:
            UntrustedError: another user owns or can modify it; see `replay_server.files.trust`.
            OSError: it cannot be created or read.
        """
        trust.make_folder(path)
        tables = path / _TABLES
        trust.check_entries([path / held_folders.LOCK, path / BOOT_FILE, tables])
        if tables.exists():
            trust.check_tree(tables)

    @classmethod
    def in_memory(cls, parent: Path) -> Root:
        """Create a private directory below ``parent``, removed on close.

        Raises:
            OSError: if it cannot be created.
        """
        held_folders.sweep(parent, TEMPORARY)
        return cls(*held_folders.make(parent, TEMPORARY), temporary=True)

    def close(self) -> None:
        """Unlock the directory; remove it if it is temporary."""
        if self.temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
