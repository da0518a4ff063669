"""A file of fixed size that is mapped into memory, its space reserved before it is stored to."""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RESERVE_STEP_BYTES = 4 << 20
"""Space is reserved this much at a time: on tmpfs that takes about a millisecond."""

_PAGE_BYTES = mmap.PAGESIZE
FILE_MODE = 0o640
"""Of files in tables, before the umask."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG)


class NoSpaceError(OSError):
    """The file system that holds the tables is full."""


def tells_full(error: BaseException) -> bool:
    """Whether an error says that the file system, or the address space, has no room."""
    return isinstance(error, OverflowError) or (isinstance(error, OSError) and error.errno in _FULL)


class MappedFile:
    """A file of fixed size, mapped; sparse at first, reserved from its beginning on as it is used.

    Storing to a page that the file system cannot provide would kill the process with SIGBUS, so
    callers `reserve` before they store. The file is never truncated while it is mapped.
    """

    def __init__(self, path: Path, size: int, *, create: bool) -> None:
        """Make a file of so many bytes, which must not exist, or open one that has this very size.

        Raises:
            ValueError: if an existing file has another size.
            NoSpaceError: if no machine, or not this one, can map so much.
            OSError: if it cannot be made or opened.
        """
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        self._file = os.open(path, flags, FILE_MODE)
        try:
            if create:
                os.ftruncate(self._file, size)
            elif (found := os.fstat(self._file).st_size) != size:
                raise ValueError(f"{path}: expected {size} bytes, found {found}; the file is corrupt")
            self._map = mmap.mmap(self._file, size)
        except BaseException as error:
            os.close(self._file)
            if tells_full(error):
                raise NoSpaceError(errno.ENOSPC, f"no room for {size} bytes", str(path)) from error
            raise
        # A table that was dropped may still be read from; its files are closed when the last reader is gone.
        self._closing = weakref.finalize(self, os.close, self._file)
        self.size = size
        self._reserved = 0
        self.bytes = np.frombuffer(self._map, np.uint8)
        """uint8[size]: the content, writable."""

    def view(self, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
        """The content as ``dtype[shape]``, writable."""
        return self.bytes.view(dtype).reshape(shape)

    def reserve(self, size: int) -> None:
        """Make sure that the first ``size`` bytes can be stored to.

        Raises:
            NoSpaceError: if the file system is full; nothing that was reserved is lost.
        """
        if size <= self._reserved:
            return
        generous = min(self.size, max(size, self._reserved + RESERVE_STEP_BYTES))
        try:
            self._allocate(generous)
        except NoSpaceError:
            if generous == size:
                raise
            self._allocate(size)

    @property
    def reserved(self) -> int:
        """Bytes reserved so far."""
        return self._reserved

    def flush(self) -> None:
        """Write the content to the disk."""
        self._map.flush()

    def sync(self) -> None:
        """Write what was stored since the last time to the disk; other threads go on, and may store meanwhile.

        Raises:
            OSError: if the disk refuses. The kernel may then take for written what is not, and the next call succeed:
                `store_anew` comes first.
        """
        os.fdatasync(self._file)

    def store_anew(self, start: int, stop: int) -> None:
        """Have the pages between these bytes, which are reserved, written with the next `sync`, changed or not.

        Nobody may store there meanwhile.
        """
        pages = self.bytes[start:stop:_PAGE_BYTES]
        # An assignment of an array to itself stores nothing.
        np.bitwise_or(pages, 0, out=pages)

    def close(self) -> None:
        """Close the file. The memory is unmapped once no array refers to it any more."""
        self.bytes = np.empty(0, np.uint8)
        self._closing()

    def _allocate(self, size: int) -> None:
        try:
            os.posix_fallocate(self._file, self._reserved, size - self._reserved)
        except OSError as error:
            if tells_full(error):
                raise NoSpaceError(*error.args) from error
            raise
        self._reserved = size
