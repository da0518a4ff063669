"""The directory that a server keeps its tables in: the user's, or one of its own in memory.

A server holds a lock on its root while it lives. A root in memory whose lock nobody holds belonged to a server
that is gone; the next one sweeps it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_LOCK = "lock"
_TABLES = "tables"
_TEMPORARY = "replay-server-"


class RootInUseError(Exception):
    """Another server holds the directory."""


class Root:
    """A locked directory with a place for tables."""

    def __init__(self, path: Path, *, temporary: bool) -> None:
        """Lock a directory, making it if there is none; use `durable` or `in_memory`.

        Raises:
            RootInUseError: if another server holds it.
            OSError: if it cannot be made.
        """
        self.path = path
        self.temporary = temporary
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _try_lock(self._lock):
            os.close(self._lock)
            raise RootInUseError(f"{path} is in use by another server; stop it, or choose another --data-dir")
        self.tables = path / _TABLES
        self.tables.mkdir(mode=0o700, exist_ok=True)

    @classmethod
    def durable(cls, path: Path) -> Root:
        """The user's directory: tables in it outlive the server."""
        return cls(path, temporary=False)

    @classmethod
    def in_memory(cls, parent: Path) -> Root:
        """A directory of the server's own below ``parent``, removed at the end."""
        sweep(parent)
        while True:
            root = cls(Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=parent)), temporary=True)
            # Another server that sweeps may have come between the making of the lock and its taking.
            if os.fstat(root._lock).st_nlink:
                return root
            root.close()

    def close(self) -> None:
        """Give the directory back; a temporary one is removed."""
        if self.temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def sweep(parent: Path) -> list[Path]:
    """Remove what servers that were killed left in ``parent``.

    Returns:
        The directories removed.
    """
    removed = []
    for path in parent.glob(f"{_TEMPORARY}*"):
        if _is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


def _is_abandoned(path: Path) -> bool:
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        # Not ours to read, or a server is just making it.
        return False
    try:
        return _try_lock(lock)
    finally:
        os.close(lock)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
