"""Folders that one process holds while it runs: it locks them, and has an owner record in them.

Later processes remove temporary folders whose holders are dead.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shlex
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from replay_server.files.owner import InUseError, Owner, UnsuitableError, left_since

log = logging.getLogger(__name__)

LOCK = "lock"
"""Name of the lock file in a folder."""
_OWN_FILE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Refuse symbolic links, and do not block if the file is a named pipe."""
_SWEEP_S = 5.0
"""Time limit of a sweep, because other users may have filled a shared directory."""
_LONGEST_PATH = 1024
_BLOCK_BYTES = 512
"""Unit of `os.stat_result.st_blocks`."""


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


def hold(folder: Path, flag: str, stopped: threading.Event | None = None) -> HeldFolder:
    """Create a folder unless it exists, and hold it; ``stopped`` is as for `Owner.claim`.

    Raises:
        InUseError: another process holds it; the message names the ``flag`` that selects another folder.
        UnsuitableError: the file system has no locks.
        StoppedError: ``stopped`` was set.
        OSError: the folder, its lock file or its owner record cannot be created or opened.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open_lock(folder)
    try:
        if not _is_locked(folder, lock):
            raise InUseError(f"{folder} is in use by another server; stop it, or choose another {flag}")
        return HeldFolder(folder, Owner.claim(folder, flag, stopped), lock)
    except BaseException:
        os.close(lock)
        raise


def make(parent: Path, prefix: str) -> HeldFolder:
    """Create a folder below ``parent``, and hold it; `UnsuitableError` if the file system has no locks."""
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
    nobody can tell here whether they are in use. A warning names those of earlier boots. Failures are logged, not
    raised.
    """
    swept: list[Path] = []
    earlier: list[Path] = []
    ends = time.monotonic() + _SWEEP_S
    try:
        with os.scandir(parent) as entries:
            for entry in entries:
                if time.monotonic() > ends:
                    log.warning("%s has too many entries to search for leftovers of dead servers", parent)
                    break
                if entry.name.startswith(prefix):
                    _sweep(Path(entry.path), swept, earlier)
    except OSError as error:
        log.warning("cannot search %s for leftovers of dead servers: %s", parent, error)
    if earlier:
        _warn_of(earlier)
    return swept


def _sweep(path: Path, swept: list[Path], earlier: list[Path]) -> None:
    """Remove a leftover of this boot, or leave it alone; add it to the list where it belongs, if any."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # not a folder, not readable, or just removed
        return
    try:
        if os.fstat(folder).st_uid == os.geteuid():
            _sweep_unless_held(path, folder, swept, earlier)
    finally:
        os.close(folder)


def _sweep_unless_held(path: Path, folder: int, swept: list[Path], earlier: list[Path]) -> None:
    try:
        lock = os.open(LOCK, os.O_RDWR | _OWN_FILE, dir_fd=folder)
    except OSError:  # a process is creating it right now
        return
    try:
        left = left_since(path) if try_lock(lock) else None
        if left == "this boot":
            # Hold the lock until it is gone: a process that has just created it could lock it, and then lose it.
            shutil.rmtree(path, ignore_errors=True)
            swept.append(path)
        elif left == "an earlier boot":
            earlier.append(path)
    except (OSError, RecursionError) as error:  # a file system without locks, or endlessly nested folders
        log.warning("cannot remove %s, a leftover of a dead server: %s", path, error)
    finally:
        os.close(lock)


def _warn_of(earlier: list[Path]) -> None:
    """Warn of folders that only a person can tell to be leftovers."""
    log.warning(
        "%d MB are in folders of servers that ended when this machine went down. They stay, because another machine of "
        "the same name might use them. If none does, remove them: rm -r %s",
        sum(map(_stored_bytes, earlier)) // 1_000_000,
        shlex.join(map(str, sorted(earlier))),
    )


def _stored_bytes(folder: Path) -> int:
    """Space that the files in a folder take; those that cannot be read, or are nested too deeply, are left out."""
    size = 0
    for parent, folders, files in os.walk(folder):
        if len(parent) > _LONGEST_PATH:
            folders.clear()
        for name in files:
            with suppress(OSError):
                size += _BLOCK_BYTES * os.lstat(os.path.join(parent, name)).st_blocks
    return size
