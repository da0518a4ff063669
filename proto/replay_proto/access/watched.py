"""Files that are read again when they change."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
Stamp = tuple[tuple[int, int, int] | None, ...]
"""By file: inode, size and time of the last change; None if it is not there."""


class UnusableFileError(Exception):
    """A file that says who may call cannot be used; the message names it, and what is wrong."""


class Watched(Generic[T]):
    """What a few files say. When they change to something that cannot be used, what they said last holds."""

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Read them.

        Args:
            paths: the files.
            read: reads them; raises `UnusableFileError`.

        Raises:
            UnusableFileError: if they cannot be used.
        """
        self._paths = tuple(paths)
        self._read = read
        self._stamp = self._look()
        self.value = read()
        """What they say, as far as `refresh` has seen."""

    def refresh(self) -> bool:
        """Look whether they have changed, and read them if so.

        Returns:
            Whether `value` is another now.
        """
        stamp = self._look()
        if stamp == self._stamp:
            return False
        names = ", ".join(map(str, self._paths))
        self._stamp = stamp
        try:
            self.value = self._read()
        except UnusableFileError as error:
            log.error("%s has changed and cannot be used, so what it said before holds: %s", names, error)
            return False
        log.info("%s has changed and was read again", names)
        return True

    def _look(self) -> Stamp:
        return tuple(map(_stamp, self._paths))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
