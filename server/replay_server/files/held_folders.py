"""Temporary folders that are locked while their process lives, and swept by others once it is gone."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path

log = logging.getLogger(__name__)

LOCK = "lock"
"""The file in a folder that its process holds a lock on."""
_OWN_FILE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""A link is an error, and a pipe in the file's place holds nobody up."""
_SWEEP_S = 5.0
"""After so long a server goes on with its start: others may have filled a directory that they share with it."""


def open_lock(folder: Path) -> int:
    """Return a descriptor of the folder's lock file, made if it is missing, not yet locked.

    Raises:
        OSError: if it cannot be opened.
    """
    return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | _OWN_FILE, 0o600)


def try_lock(descriptor: int) -> bool:
    """Take a lock; False if another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(folder: Path, in_use: Exception) -> int:
    """Return a descriptor that holds the folder's lock until it is closed.

    Raises:
        in_use: if another process has it.
        OSError: if it cannot be opened.
    """
    descriptor = open_lock(folder)
    if not try_lock(descriptor):
        os.close(descriptor)
        raise in_use
    return descriptor


def make(parent: Path, prefix: str) -> tuple[Path, int]:
    """Make a folder below ``parent`` that nobody sweeps until the descriptor is closed.

    Returns:
        The folder, and the descriptor that holds its lock.

    Raises:
        OSError: if it cannot be made.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = open_lock(folder)
        # A sweep may have come between the making of the lock file and its locking: it is under way, or done.
        if try_lock(lock) and os.fstat(lock).st_nlink:
            return folder, lock
        os.close(lock)


def sweep(parent: Path, prefix: str) -> list[Path]:
    """Remove what processes of this user that are gone left in ``parent``. Whatever lies there, this does not fail.

    Returns:
        The folders removed.
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
    except OSError:  # no folder, not ours to read, or just removed
        return False
    try:
        return os.fstat(folder).st_uid == os.geteuid() and _remove_unless_held(path, folder)
    finally:
        os.close(folder)


def _remove_unless_held(path: Path, folder: int) -> bool:
    try:
        lock = os.open(LOCK, os.O_RDWR | _OWN_FILE, dir_fd=folder)
    except OSError:  # a process is just making it
        return False
    try:
        if not try_lock(lock):
            return False
        # Under the lock: a process that is just making this folder would otherwise lock it now, and lose it.
        shutil.rmtree(path, ignore_errors=True)
        return True
    except (OSError, RecursionError) as error:  # a file system without locks; folders in folders, without end
        log.warning("cannot remove %s, a leftover of a dead server: %s", path, error)
        return False
    finally:
        os.close(lock)
