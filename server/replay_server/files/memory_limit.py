"""The memory that this process's control group (cgroup) allows, and how much of it is in use.

Files on a tmpfs are charged to the group of the process that writes them. A process that exceeds the limit is killed,
so the server asks before it reserves space. The page cache of files on disks does not count as used, because the kernel
reclaims it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from replay_server.files.mapped_file import NoSpaceError

_SPARE_BYTES = 32 << 20
"""Memory that is kept free for messages, and for what the kernel charges in addition."""
_UNLIMITED = 1 << 60
"""Version 1 expresses "no limit" as a number above this one."""


class MemoryUse(NamedTuple):
    """The limit that leaves the least room."""

    limit_bytes: int
    used_bytes: int
    """Memory in use, without what the kernel can reclaim."""
    file: Path
    """The file with the limit."""

    @property
    def left_bytes(self) -> int:
        """Memory that is left."""
        return max(0, self.limit_bytes - self.used_bytes)


class _Version(NamedTuple):
    """Names of the files of a version of cgroups."""

    limit: str
    used: str
    stat_prefix: str


_V1 = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_V2 = _Version("memory.max", "memory.current", "")


class MemoryLimit:
    """The limits of this process's group and of the groups around it."""

    def __init__(self, groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> None:
        """Find the groups of this process, named in ``own``, below ``groups``, where cgroups are mounted."""
        self._folders = list(_folders(groups, own))

    def read(self) -> MemoryUse | None:
        """Return the limit that leaves the least room; None if there is none."""
        uses = [use for folder, version in self._folders if (use := _use(folder, version)) is not None]
        return min(uses, key=lambda use: use.left_bytes, default=None)

    def check(self, size: int) -> None:
        """Check that this much memory is left."""
        use = self.read()
        if use is not None and size + _SPARE_BYTES > use.left_bytes:
            raise NoSpaceError(
                errno.ENOMEM,
                f"{size / 1e6:.1f} MB more would leave less than {_SPARE_BYTES / 1e6:.1f} MB of the memory limit of "
                f"{use.limit_bytes / 1e6:.1f} MB, {use.used_bytes / 1e6:.1f} MB of which are used",
                str(use.file),
            )


def is_in_memory(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether the files in a directory are kept in memory, on a tmpfs or ramfs."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.read_text("utf-8", "replace").splitlines():
        fields, _, kind = line.partition(" - ")
        if fields.split()[2] == number:
            return kind.split()[0] in ("tmpfs", "ramfs")
    return False


def _folders(groups: Path, own: Path) -> Iterator[tuple[Path, _Version]]:
    """Yield the folders of this process's group and of the groups around it."""
    try:
        lines = own.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        version, top = (_V1, groups / "memory") if controllers else (_V2, groups)
        # In a container, the path may be the host's, of which only the last part is mounted, at the top.
        inner = top.joinpath(*Path(path).parts[1:])
        for folder in (inner, *inner.parents):
            if (folder == top or top in folder.parents) and (folder / version.limit).is_file():
                yield folder, version


def _use(folder: Path, version: _Version) -> MemoryUse | None:
    """Read the limit and use of one group; None if it has no limit, or is gone."""
    file = folder / version.limit
    try:
        limit = file.read_text("ascii").strip()
        if limit == "max" or int(limit) >= _UNLIMITED:
            return None
        used = int((folder / version.used).read_text("ascii"))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
    except OSError:
        return None
    cached = sum(int(stat.get(f"{version.stat_prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return MemoryUse(int(limit), max(0, used - cached), file)
