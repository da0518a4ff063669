"""The directory of a server's tables: durable, or temporary in memory.

A server holds its root while it runs. A root in memory that a dead server has left is removed by the next server.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from replay_proto.owner import OWNER_FILE

from replay_server.files import held_folders, trust
from replay_server.files.held_folders import HeldFolder

TABLES_FOLDER = "tables"
"""Name of the folder of tables in a root."""
TEMPORARY = "replay-server-"
"""Name prefix of roots in memory."""


class Root:
    """A directory for tables that belongs to this server."""

    def __init__(self, held: HeldFolder, *, temporary: bool) -> None:
        """Use `durable` or `in_memory` instead."""
        self.path = held.path
        self.temporary = temporary
        self.owner = held.owner
        """This server's claim to the directory."""
        self._held = held
        self.tables = self.path / TABLES_FOLDER
        try:
            self.owner.probe()
            self.tables.mkdir(mode=0o700, exist_ok=True)
            self.owner.watch(self.tables)
        except BaseException:
            self.close()
            raise

    @classmethod
    def durable(cls, path: Path, stopped: threading.Event | None = None) -> Root:
        """Open the user's directory, or create it. Its tables outlive the server. Raises like `held_folders.hold`."""
        return cls(held_folders.hold(path, "--data-dir", stopped), temporary=False)

    @staticmethod
    def check_durable(path: Path) -> None:
        """Check that no other user of this machine owns or can modify a durable root; see `files.trust` for errors."""
        trust.make_folder(path)
        tables = path / TABLES_FOLDER
        trust.check_entries([path / held_folders.LOCK, path / OWNER_FILE, tables])
        if tables.exists():
            trust.check_tree(tables)

    @classmethod
    def in_memory(cls, parent: Path) -> Root:
        """Create a private directory below ``parent``, removed on close. Raises as `held_folders.make` does."""
        held_folders.sweep(parent, TEMPORARY)
        return cls(held_folders.make(parent, TEMPORARY), temporary=True)

    def close(self) -> None:
        """Let another server have the directory; remove it if it is temporary."""
        if self.temporary:
            self.owner.end()
            shutil.rmtree(self.path, ignore_errors=True)
        self._held.close()
