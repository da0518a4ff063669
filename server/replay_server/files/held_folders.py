"""Temporary folders that a process locks while it runs; later processes remove unlocked ones."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path

from replay_server.errors import FatalError

log = logging.getLogger(__name__)

LOCK = "lock"
"""Name of the lock file in a folder."""
_OWN_FILE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Refuse symbolic links, and do not block if the file is a named pipe."""
_SWEEP_S = 5.0
"""Time limit of a sweep, because other users may have filled a shared directory."""


class InUseError(FatalError):
    """Another server holds the folder."""


def open_lock(folder: Path) -> int:
    """Open the folder's lock file without locking it, creating it if missing."""
    return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | _OWN_FILE, 0o600)


def try_lock(descriptor: int) -> bool:
    """Try to take a lock; False if another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(folder: Path, flag: str) -> int:
    """Create a folder unless it exists, and lock it until the returned descriptor is closed.

    Raises:
        InUseError: another process holds the lock; the message names the ``flag`` that selects another folder.
        OSError: the folder or its lock file cannot be created or opened.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = open_lock(folder)
    if not try_lock(descriptor):
        os.close(descriptor)
        raise InUseError(f"{folder} is in use by another server; stop it, or choose another {flag}")
    return descriptor


def make(parent: Path, prefix: str) -> tuple[Path, int]:
    """Create a locked folder below ``parent``.

    Returns:
        The folder, and the descriptor that holds its lock.

    Raises:
        OSError: the folder cannot be created.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = open_lock(folder)
        # A sweep may have removed the folder before it was locked.
        if try_lock(lock) and os.fstat(lock).st_nlink:
            return folder, lock
        os.close(lock)


def sweep(parent: Path, prefix: str) -> list[Path]:
    """Remove folders in ``parent`` that dead processes of this user left behind, and return their paths.

    Only folders whose names start with ``prefix`` are removed. Failures are logged, not raised.
    """
    swept: list[Path] = []
    ends = time.monotonic() + _SWEEP_S
    try:
        with os.scandir(parent) as entries:
            for entry in entries:
                if time.monotonic() > ends:
                    log.warning("%s has too many entries to search for leftovers of dead servers", parent)
                    break
                if entry.name.startswith(prefix) and _sweep(Path(entry.path)):
                    swept.append(Path(entry.path))
    except OSError as error:
        log.warning("cannot search %s for leftovers of dead servers: %s", parent, error)
    return swept


def _sweep(path: Path) -> bool:
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # not a folder, not readable, or just removed
        return False
    try:
        return os.fstat(folder).st_uid == os.geteuid() and _remove_unless_held(path, folder)
    finally:
        os.close(folder)


def _remove_unless_held(path: Path, folder: int) -> bool:
    try:
        lock = os.open(LOCK, os.O_RDWR | _OWN_FILE, dir_fd=folder)
    except OSError:  # a process is creating it right now
        return False
    try:
        if not try_lock(lock):
            return False
        # Hold the lock until the folder is gone: a process that has just created it could lock it, and then lose it.
        shutil.rmtree(path, ignore_errors=True)
        return True
    except (OSError, RecursionError) as error:  # a file system without locks, or endlessly nested folders
        log.warning("cannot remove %s, a leftover of a dead server: %s", path, error)
        return False
    finally:
        os.close(lock)
