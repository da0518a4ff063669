"""Names and small files that outlive a loss of power."""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make the names in a directory outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make a file's content and size outlive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: str) -> None:
    """Give a file new content: after a loss of power it has the old or the new one, whole."""
    new = path.with_name(f".new-{path.name}")
    new.write_text(content, "utf-8")
    sync_file(new)
    new.rename(path)
    sync_folder(path.parent)
