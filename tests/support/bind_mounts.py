"""FUSE mounts that show a directory at a second place, with locks of their own, as some shared file systems have."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def lacking() -> str:
    """What this machine lacks for such mounts; empty if nothing."""
    if shutil.which("bindfs") is None:
        return "bindfs is not installed"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.geteuid() != 0:
        return "FUSE mounts need root and /dev/fuse"
    return ""


@contextmanager
def bound(folder: Path, place: Path, *options: str) -> Iterator[Path]:
    """Mount ``folder`` at ``place`` inside the block; skip the test where that is impossible."""
    if why := lacking():
        pytest.skip(why)
    place.mkdir()
    mounted = subprocess.run(["bindfs", *options, str(folder), str(place)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"bindfs cannot mount here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
