"""Writes small files and directory entries so that they survive a power loss."""

from __future__ import annotations

import os
from pathlib import Path


def sync_path(path: Path) -> None:
    """Sync a file's content and size, or the entries of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    """Write all of a buffer. A single call of the system may write only a part, for instance if a disk is nearly full.

    Raises:
        OSError: the rest cannot be written.
    """
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def overwrite_file(path: Path, content: bytes) -> None:
    """Overwrite the beginning of a file with ``content``, or create the file.

    If the file is already at least as long as ``content``, no new disk space is needed. A power loss during the write
    may leave a mixture of old and new content.
    """
    is_new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        sync_path(path.parent)


def replace_file(path: Path, content: str) -> None:
    """Replace a file atomically: after a power loss it has either the old or the new content."""
    new = path.with_name(f".new-{path.name}")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    new.rename(path)
    sync_path(path.parent)
