"""Writes files of a run as a whole: a process that is killed leaves the old file or the new one, never a part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SUFFIX: Final = ".new"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file to write in the block; without an exception, it replaces the file at ``path``."""
    written = path.with_name(path.name + _SUFFIX)
    yield written
    with written.open("rb") as file:
        os.fsync(file.fileno())
    written.replace(path)


def replace_text(path: Path, text: str) -> None:
    """Write a text file, UTF-8."""
    with replacing(path) as written:
        written.write_text(text, "utf-8")
