"""Controls who may read the files of tables: only the server's user, or also a group.

Files are created readable by the group, but the process's umask removes this right if no group is given. With a group,
the set-group-ID bit of the tables' folder makes new entries belong to that group.
"""

from __future__ import annotations

import grp
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from replay_proto.owner import OWNER_FILE

from replay_server.errors import FatalError
from replay_server.files.mapped_file import FILE_MODE

if TYPE_CHECKING:
    from replay_server.storage.root import Root

FOLDER_MODE = 0o750
"""Mode of table folders, before the umask."""
UMASK = 0o077
"""Umask of the server if no group is given."""
GROUP_UMASK = 0o027
"""Umask of the server if a group is given."""
_PRIVATE_FOLDER = 0o700
_PRIVATE_FILE = 0o600
_SHARED_FOLDER = FOLDER_MODE | stat.S_ISGID


def keep_private(root: Root) -> None:
    """Restrict access to the server's user, revoking what an earlier server allowed."""
    _give(root.path / OWNER_FILE, None, _PRIVATE_FILE)
    _give(root.tables, None, _PRIVATE_FOLDER)


def share_with_group(root: Root, group: str) -> None:
    """Let members of a group read existing and future tables.

    Raises:
        FatalError: if there is no such group, or the server's user is not a member of it.
    """
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        raise FatalError(f"group: expected a group of this machine, got {group!r}, which does not exist") from None
    try:
        _give(root.path, number, FOLDER_MODE)
        _give(root.path / OWNER_FILE, number, FILE_MODE)
        _give(root.tables, number, _SHARED_FOLDER)
        for path in root.tables.rglob("*"):
            if path.is_socket():  # left by a killed server; the next one creates its own
                continue
            _give(path, number, _SHARED_FOLDER if path.is_dir() else FILE_MODE)
    except PermissionError as error:
        raise FatalError(
            f"group: expected one that the server's user belongs to, got {group!r}: {error.strerror} ({error.filename})"
        ) from error


def _give(path: Path, group: int | None, mode: int) -> None:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # Set the mode last: changing the group clears the set-group-ID bit.
        if group is not None:
            os.fchown(file, -1, group)
        if stat.S_IMODE(os.fstat(file).st_mode) != mode:
            os.fchmod(file, mode)
    finally:
        os.close(file)
