"""Watches files and reads them again after changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
Stamp = tuple[tuple[int, int, int, int] | None, ...]
"""By file: inode, size, and when its content and its inode last changed; None if it is not there.

Anyone can set
the time of the content, but not that of the inode.
"""


class UnusableFileError(Exception):
    """A token or certificate file cannot be used; the message names the file and the problem."""


class Watched(Generic[T]):
    """A value read from files. If they change to something unusable, the last value stays in effect."""

    def __init__(self, paths: Sequence[Path], read: Callable[[], T], *, if_gone: T | None = None) -> None:
        """Read the files.

        Args:
            paths: the files.
            read: reads them; raises `UnusableFileError`.
            if_gone: value once a file is missing at two checks in a row; None: keep the last value. A single miss
                does not count, because a program may briefly remove a file to rewrite it.

        Raises:
            UnusableFileError: the files cannot be used.
        """
        self._paths = tuple(paths)
        self._read = read
        self._if_gone = if_gone
        self._stamp = self._seen = self._look()
        self.value = read()
        """The value at the last `refresh`."""

    def refresh(self) -> bool:
        """Reread the files if they have changed; a failed read is retried at the next check.

        Returns:
            Whether `value` has changed.
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
