"""Files with secrets: whether other users of the machine can read or change them."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

_OPEN: Final = stat.S_IRWXO | stat.S_IWGRP
"""Group read access can be intended, as for table files; with write access, members could grant themselves rights."""


def exposure_of(path: Path) -> str | None:
    """Describe how others can access a file, and the command that fixes it; None: they cannot.

    Raises:
        OSError: the file does not exist.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & _OPEN:
        return None
    return (
        f"{path}: other users of this machine can read or change it (mode {mode:04o}); fix it with: chmod g-w,o= {path}"
    )
