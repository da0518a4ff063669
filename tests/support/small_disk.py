"""A file system of a few megabytes, visible to one process and removed when it ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

_NAMESPACES = (("unshare", "--mount"), ("unshare", "--user", "--map-root-user", "--mount"))
"""The second one is for users without the right to mount, who have it in a new namespace."""
_MOUNT = 'mount -t tmpfs -o "size=$1,mode=700" tmpfs "$2" && shift 2 && exec "$@"'


def with_small_disk(folder: Path, size_mb: int) -> Sequence[str]:
    """A command prefix that runs a command with a small tmpfs at ``folder``."""
    folder.mkdir()
    for namespace in _NAMESPACES:
        command = [*namespace, "sh", "-c", _MOUNT, "sh", f"{size_mb}m", str(folder)]
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    raise AssertionError("no tmpfs can be mounted: run the tests as root, or where user namespaces are allowed")


@contextmanager
def mounted_disk(folder: Path, size_mb: int) -> Iterator[Path]:
    """A small tmpfs at ``folder``, visible to all processes; skips the test without the right to mount."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=700", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system can be mounted by root alone")
    try:
        yield folder
    finally:
        if folder.is_mount():  # a test may have unmounted it
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
