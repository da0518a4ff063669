"""Files with secrets: whether other users of the machine can read or change them."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

_OPEN: Final = stat.S_IRWXO | stat.S_IWGRP
"""A group that may read a file is a choice, as with the files of tables; one that may change it could let itself in."""


def exposure_of(path: Path) -> str | None:
    """How a file is open to others, and the command that mends it; None: it is not.

    Raises:
        OSError: if it is not there.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & _OPEN:
        return None
    return (
        f"{path}: other users of this machine can read or change it (mode {mode:04o}); fix it with: chmod g-w,o= {path}"
    )
