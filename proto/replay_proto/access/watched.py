"""Watches files, and reloads them when they change; checks whether other users of the machine can read them."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
_OPEN: Final = stat.S_IRWXO | stat.S_IWGRP
"""Permissions that are reported: all permissions of other users, and the group's write permission."""
Stamp = tuple[tuple[int, int, int, int] | None, ...]
"""For each file: inode, size, mtime and ctime; None if the file is missing.

A program can set mtime, but not ctime.
"""


class UnusableFileError(Exception):
    """A token or certificate file cannot be used; the message names the file and the problem."""


class Watched(Generic[T]):
    """A value read from files. If they become invalid, the last value stays in effect."""

    def __init__(self, paths: Sequence[Path], read: Callable[[], T], *, if_gone: T | None = None) -> None:
        """Read the files.

        Args:
            paths: the files.
            read: reads the files; raises `UnusableFileError`.
            if_gone: the value to use after a file was missing at two checks in a row; None: keep the last value. A
                single check does not count, because programs may remove a file just before they write the new one.
        """
        self._paths = tuple(paths)
        self._read = read
        self._if_gone = if_gone
        self._stamp = self._seen = self._look()
        self.value = read()
        """The value at the last `refresh`."""

    def refresh(self) -> bool:
        """Read the files if they have changed. If they are invalid, the next call tries again.

        Return whether `value` has changed.
        """
        stamp = self._look()
        if stamp == self._stamp:
            return False
        is_new, self._seen = stamp != self._seen, stamp
        names = ", ".join(map(str, self._paths))
        if None in stamp and self._if_gone is not None and not is_new:
            self.value = self._if_gone
            log.error("%s is missing, its content no longer applies", names)
        else:
            try:
                self.value = self._read()
            except UnusableFileError as error:
                if is_new:
                    log.error("%s has changed but is invalid, keeping its previous content: %s", names, error)
                return False
            log.info("%s has changed and was read again", names)
        self._stamp = stamp
        return True

    def _look(self) -> Stamp:
        return tuple(map(_stamp, self._paths))


def _stamp(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def exposure_of(path: Path) -> str | None:
    """Describe how other users can access a file and how to fix that; None if they cannot."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & _OPEN:
        return None
    return (
        f"{path}: other users of this machine can read or change it (mode {mode:04o}); fix it with: chmod g-w,o= {path}"
    )
