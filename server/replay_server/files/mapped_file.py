"""Memory-mapped files of fixed size whose space is reserved before it is written to."""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RESERVE_STEP_BYTES = 4 << 20
"""Bytes to reserve per step; on tmpfs, a step takes about a millisecond."""

_PAGE_BYTES = mmap.PAGESIZE
_BLOCK_BYTES = 512
"""Unit of ``st_blocks``."""
FILE_MODE = 0o640
"""Mode of table files, before the umask."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG)


class NoSpaceError(OSError):
    """The file system of the tables is full."""


def tells_full(error: BaseException) -> bool:
    """Whether an error means that the file system or address space is full."""
    return isinstance(error, OverflowError) or (isinstance(error, OSError) and error.errno in _FULL)


class MappedFile:
    """A memory-mapped file of fixed size. It starts sparse; its space is reserved as needed, from offset 0 upwards.

    Storing to a page that the file system cannot provide would kill the process with SIGBUS, so callers must `reserve`
    first. The file is never truncated while it is mapped.
    """

    def __init__(self, path: Path, size: int, *, create: bool) -> None:
        """Create a new file of ``size`` bytes, or open an existing one of exactly this size.

        Raises:
            ValueError: the existing file has another size.
            NoSpaceError: there is no room for a file or mapping of this size.
            OSError: the file cannot be created or opened.
        """
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        self._file = os.open(path, flags, FILE_MODE)
        try:
            if create:
                os.ftruncate(self._file, size)
            found = os.fstat(self._file)
            if found.st_size != size:
                raise ValueError(f"{path}: expected {size} bytes, found {found.st_size}; the file is corrupt")
            self._map = mmap.mmap(self._file, size)
        except BaseException as error:
            os.close(self._file)
            if tells_full(error):
                raise NoSpaceError(errno.ENOSPC, f"no room for {size} bytes", str(path)) from error
            raise
        # A dropped table may still have readers; the file is closed when the last one finishes.
        self._closing = weakref.finalize(self, os.close, self._file)
        self.size = size
        self.reserved = 0
        """Bytes reserved since the file was opened, from offset 0 upwards."""
        # A copied file may have holes anywhere, so `reserve` does not rely on these bytes.
        self._found_bytes = min(size, found.st_blocks * _BLOCK_BYTES)
        self.bytes = np.frombuffer(self._map, np.uint8)
        """uint8[size]: the content, writable."""

    def view(self, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
        """Return the content as ``dtype[shape]``, writable."""
        return self.bytes.view(dtype).reshape(shape)

    @property
    def held_bytes(self) -> int:
        """Bytes that the file takes, reserved now or before it was opened."""
        return max(self.reserved, self._found_bytes)

    def growth(self, size: int) -> int:
        """Return how many bytes `reserve` adds for this size, if there is room."""
        return 0 if size <= self.reserved else max(0, self._generous(size) - self.held_bytes)

    def reserve(self, size: int) -> None:
        """Reserve space for the first ``size`` bytes. If this raises `NoSpaceError`, earlier reservations remain."""
        if size <= self.reserved:
            return
        generous = self._generous(size)
        try:
            self._allocate(generous)
        except NoSpaceError:
            if generous == size:
                raise
            self._allocate(size)

    def flush(self) -> None:
        """Write the content to disk."""
        self._map.flush()

    def sync(self) -> None:
        """Sync changes to disk; other threads may write meanwhile.

        Raises:
            OSError: the sync failed. The kernel may have marked unwritten pages as clean, so call `store_anew` before
                the next sync.
        """
        os.fdatasync(self._file)

    def store_anew(self, start: int, stop: int) -> None:
        """Mark the reserved pages from byte ``start`` to byte ``stop`` as dirty, so that the next `sync` writes them.

        No other thread may write to these pages meanwhile.
        """
        pages = self.bytes[start:stop:_PAGE_BYTES]
        # NumPy skips assigning an array to itself.
        np.bitwise_or(pages, 0, out=pages)

    def close(self) -> None:
        """Close the file. The memory is unmapped when no array refers to it."""
        self.bytes = np.empty(0, np.uint8)
        self._closing()

    def _generous(self, size: int) -> int:
        return min(self.size, max(size, self.reserved + RESERVE_STEP_BYTES))

    def _allocate(self, size: int) -> None:
        try:
            os.posix_fallocate(self._file, self.reserved, size - self.reserved)
        except OSError as error:
            if tells_full(error):
                raise NoSpaceError(*error.args) from error
            raise
        self.reserved = size
