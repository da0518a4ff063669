"""A file system of a few megabytes that one process sees, and that goes when it ends."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

_NAMESPACES = (("unshare", "--mount"), ("unshare", "--user", "--map-root-user", "--mount"))
"""The second one is for those who may not mount: in a namespace of their own, they may."""
_MOUNT = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && shift 2 && exec "$@"'


def with_small_disk(folder: Path, size_mb: int) -> Sequence[str]:
    """The command, to be followed by another one, that runs it with a small tmpfs at ``folder``."""
    folder.mkdir()
    for namespace in _NAMESPACES:
        command = [*namespace, "sh", "-c", _MOUNT, "sh", f"{size_mb}m", str(folder)]
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    raise AssertionError("no tmpfs can be mounted: run the tests as root, or where user namespaces are allowed")
