"""Folders that one process holds while it runs: it locks them, and has an owner record in them.

Later processes remove temporary folders whose holders are dead.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from replay_server.files.owner import InUseError, Owner, UnsuitableError, is_left_over

log = logging.getLogger(__name__)

LOCK = "lock"
"""Name of the lock file in a folder."""
_OWN_FILE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Refuse symbolic links, and do not block if the file is a named pipe."""
_SWEEP_S = 5.0
"""Time limit of a sweep, because other users may have filled a shared directory."""


@dataclass(frozen=True)
class HeldFolder:
    """A folder that this process holds."""

    path: Path
    owner: Owner
    _lock: int

    def close(self) -> None:
        """Let others hold it."""
        self.owner.release()
        os.close(self._lock)


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


def hold(folder: Path, flag: str) -> HeldFolder:
    """Create a folder unless it exists, and hold it.

    Raises:
        InUseError: another process holds it; the message names the ``flag`` that selects another folder.
        UnsuitableError: the file system has no locks.
        OSError: the folder, its lock file or its owner record cannot be created or opened.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open_lock(folder)
    try:
        if not _is_locked(folder, lock):
            raise InUseError(f"{folder} is in use by another server; stop it, or choose another {flag}")
        return HeldFolder(folder, Owner.claim(folder, flag), lock)
    except BaseException:
        os.close(lock)
        raise


def make(parent: Path, prefix: str) -> HeldFolder:
    """Create a folder below ``parent``, and hold it.

    Raises:
        UnsuitableError: the file system has no locks.
        OSError: the folder cannot be created.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = open_lock(folder)
        # A sweep of another server locks the folder for a moment to look into it.
        if _is_locked(folder, lock):
            return HeldFolder(folder, Owner.claim(folder, "directory"), lock)
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def _is_locked(folder: Path, lock: int) -> bool:
    try:
        return try_lock(lock)
    except OSError as error:
        raise UnsuitableError(
            f"{folder}: expected a file system with locks (flock), got {error.strerror!r}; choose another directory"
        ) from error


def sweep(parent: Path, prefix: str) -> list[Path]:
    """Remove folders in ``parent`` that dead processes of this user left behind, and return their paths.

    Only folders whose names start with ``prefix`` are removed, and only those of this boot of this machine: of others,
    nobody can tell here whether they are in use. Failures are logged, not raised.
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
        if not is_left_over(path):
            log.info("%s is left alone: no server of this machine since its start has made it", path)
            return False
        # Hold the lock until the folder is gone: a process that has just created it could lock it, and then lose it.
        shutil.rmtree(path, ignore_errors=True)
        return True
    except (OSError, RecursionError) as error:  # a file system without locks, or endlessly nested folders
        log.warning("cannot remove %s, a leftover of a dead server: %s", path, error)
        return False
    finally:
        os.close(lock)
