"""Temporary folders that are locked while their process lives, and swept by others once it is gone."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

LOCK = "lock"
"""The file in a folder that its process holds a lock on."""


def open_lock(folder: Path) -> int:
    """Return a descriptor of the folder's lock file, made if it is missing, not yet locked.

    Raises:
        OSError: if it cannot be opened.
    """
    return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int) -> bool:
    """Take a lock; False if another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
    """Remove what processes that are gone left in ``parent``.

    Returns:
        The folders removed.
    """
    return [folder for folder in parent.glob(f"{prefix}*") if _sweep(folder)]


def _sweep(folder: Path) -> bool:
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        # Not ours to read, or a process is just making it.
        return False
    try:
        if not try_lock(lock):
            return False
        # Under the lock: a process that is just making this folder would otherwise lock it now, and lose it.
        shutil.rmtree(folder, ignore_errors=True)
        return True
    finally:
        os.close(lock)
