"""How the C library's allocator deals with blocks of megabytes."""

from __future__ import annotations

import ctypes
import sys

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Parameters of glibc's `mallopt`."""
_KEPT_BLOCK_BYTES = 32 << 20
_KEPT_BYTES = 64 << 20


def keep_large_blocks() -> None:
    """Keep blocks up to 32 MiB, and 64 MiB in all, for the next messages instead of giving them back to the kernel.

    Each page that comes from the kernel costs a page fault. For a message of 4 MiB, which gRPC copies twice, that is
    6 of the 7 ms during which the event loop serves nobody else. Does nothing where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
