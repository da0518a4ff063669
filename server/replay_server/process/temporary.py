"""Finds a directory for temporary files."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger(__name__)


def ensure_temporary_directory(others: Iterable[Path | None]) -> None:
    """If the usual directories for temporary files are missing or read-only, use the first of the ``others`` instead.

    That is so in a container with a read-only root. Does nothing if none of them is writable; what needs one says so.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        for folder in others:
            if folder is not None and _is_writable(folder):
                tempfile.tempdir = str(folder)
                log.info("temporary files are in %s, because no usual directory for them is writable", folder)
                return


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
