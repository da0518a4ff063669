"""Writes small files and directory entries so that they survive a power loss."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def sync_path(path: Path) -> None:
    """Sync a file's content and size, or the entries of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    """Write all of a buffer. A single call of the system may write only a part, such as if a disk is nearly full."""
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


def rename_durably(source: Path, target: Path) -> Path:
    """Rename a file or directory within its folder, and sync the folder; return the new path.

    If that fails, the old name is back.
    """
    with _folder_of(target) as folder:
        source.rename(target)
        try:
            os.fsync(folder)
        except OSError:
            target.rename(source)
            raise
    return target


def replace_file(path: Path, content: str) -> None:
    """Replace a file atomically: after an error or a power loss, it has either the old or the new content."""
    new, old = path.with_name(f".new-{path.name}"), path.with_name(f".old-{path.name}")
    for left_over in (new, old):
        left_over.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    with _folder_of(path) as folder:
        with suppress(FileNotFoundError):
            os.link(path, old)
        new.rename(path)
        try:
            os.fsync(folder)
        except OSError:
            old.rename(path) if old.exists() else path.unlink()
            raise
        old.unlink(missing_ok=True)


@contextmanager
def _folder_of(path: Path) -> Iterator[int]:
    """Open the folder of a path. Open it before a rename, so that a lack of descriptors changes nothing."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)
