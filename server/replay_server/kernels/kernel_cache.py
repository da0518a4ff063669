"""The cache of compiled kernels: a separate folder for each version of the code.

Numba reuses a compiled kernel as long as the file that defines it is unchanged. But kernels here call kernels in other
files and use their constants, so numba would keep using old callees. So each version has its own folder,
``kernels-<digest>``. The digest covers every source file that defines a kernel or a constant for kernels (all of
``backends`` and ``kernels``), and the compiler's version and settings. It need not cover the processor, which numba
checks.

The folder is in the first of these places that is writable, or has all kernels although it is read-only, as in a
container image that runs as another user:

1. ``NUMBA_CACHE_DIR``, if it is set,
2. ``__pycache__`` next to this file: in a source checkout or a user's environment,
3. the user's cache, ``$XDG_CACHE_HOME`` or ``~/.cache``,
4. a temporary folder, which is removed when the process ends.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import llvmlite
import numba
import numpy as np
from llvmlite import binding

from replay_server.errors import FatalError
from replay_server.files import held_folders, trust
from replay_server.files.durable_files import sync_path

log = logging.getLogger(__name__)

PREFIX = "kernels-"
KEPT_UNUSED_S = 28 * 24 * 3600.0
"""Folders of other versions are removed after this long without use."""
NEEDED_BYTES = 32 << 20
"""Required free space for compiled kernels, several times their size."""

_COMPLETE = "complete-"
_REMOVED = ".removed-"
_TEMPORARY = "replay-kernels-"
_DECORATOR = re.compile(r"^@(part_of_)?kernel$", re.MULTILINE)
"""Matches in every file that defines kernels. Other compiled functions are not cached; see `compile`."""
_ROOT = Path(__file__).parents[1]
_BESIDE_CODE = Path(__file__).parent / "__pycache__"


@cache
def sources() -> frozenset[Path]:
    """Return the files that kernels may depend on: those with kernels, and all in ``backends`` and this package."""
    beside = (file for package in ("backends", "kernels") for file in (_ROOT / package).rglob("*.py"))
    decorated = (file for file in _ROOT.rglob("*.py") if _DECORATOR.search(file.read_text("utf-8")))
    return frozenset((*beside, *decorated))


@cache
def digest() -> str:
    """Return a digest of all `sources` and of the compiler."""
    settings = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("NUMBA_") and name != "NUMBA_CACHE_DIR"  # the optimization level, checks of bounds, ...
    }
    tools = (numba.__version__, llvmlite.__version__, np.__version__, platform.python_implementation())
    summary = hashlib.sha256(repr((tools, platform.python_version(), settings)).encode())
    for file in sorted(sources()):
        content = file.read_bytes()
        summary.update(f"{file.relative_to(_ROOT)} {len(content)}\n".encode() + content)
    return summary.hexdigest()[:16]


@cache
def folder() -> Path:
    """Return the folder for this version's kernels. It is writable, or has all of them.

    Raises:
        FatalError: there is none, not even a temporary one.
    """
    name = f"{PREFIX}{digest()}"
    for place in _places():
        if not _is_trusted(place, place / name):
            continue
        if _can_be_written_to(place / name) and (is_complete(place / name) or _has_room(place)):
            _remove_unused(place)
            return place / name
        if is_complete(place / name):
            return place / name
    try:
        parent = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise FatalError(
            "compiled kernels: expected a directory for them that is writable, or has all of them; set NUMBA_CACHE_DIR "
            "to one, or TMPDIR to one for temporary files"
        ) from error
    held_folders.sweep(parent, _TEMPORARY)
    temporary = held_folders.make(parent, _TEMPORARY).path  # held until the process ends
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    (temporary / name).mkdir()
    return temporary / name


def is_temporary() -> bool:
    """Whether the kernels are in a temporary folder that is removed with this process."""
    return folder().parent not in _places()


def is_complete(where: Path) -> bool:
    """Whether the folder has every kernel, compiled for this processor."""
    return _mark(where).exists()


def set_complete(where: Path) -> None:
    """Sync the folder, and record that it has every kernel, compiled for this processor."""
    try:
        for path in where.rglob("*"):
            sync_path(path)
        _mark(where).touch()
    except OSError as error:
        log.warning("the next start recompiles the kernels: %s", error)


def remove_unfinished(where: Path) -> None:
    """Remove the kernels of an interrupted compilation, which a power loss may have corrupted."""
    if any(where.glob(f"{_COMPLETE}*")):
        return
    for path in (*where.rglob("*.nbi"), *where.rglob("*.nbc")):
        path.unlink(missing_ok=True)


def kernels_in(where: Path) -> int:
    """Return the number of compiled kernels in the folder."""
    return sum(1 for _ in where.rglob("*.nbi"))


@contextmanager
def lock(where: Path) -> Iterator[bool]:
    """Try to lock the folder for compiling, and yield whether this succeeded. A killed process releases its lock."""
    descriptor: int | None = None
    try:
        descriptor = held_folders.open_lock(where)
        is_ours = held_folders.try_lock(descriptor)
    except OSError:  # no space or no locks: several servers may compile the same kernels
        is_ours = True
    try:
        yield is_ours
    finally:
        if descriptor is not None:
            os.close(descriptor)


@cache
def _places() -> tuple[Path, ...]:
    given = os.environ.get("NUMBA_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    places = [Path(given).absolute()] if given else []
    places.append(_BESIDE_CODE)
    if os.path.isabs(home):
        places.append(Path(home) / "replay-service")
    return tuple(places)


def _is_trusted(place: Path, where: Path) -> bool:
    """Whether no other user can put code into these folders.

    Anyone who can write next to the source code is trusted anyway.
    """
    if place == _BESIDE_CODE:
        return True
    try:
        trust.check_folder(place, make=True)
        trust.check_entries([where, *where.rglob("*")], owners=[0])
    except trust.UntrustedError as error:
        log.warning("not using %s for kernels: %s", place, error)
        return False
    except OSError:  # cannot be created or read
        return False
    return True


def _has_room(place: Path) -> bool:
    there = os.statvfs(place)
    if there.f_bavail * there.f_frsize >= NEEDED_BYTES:
        return True
    log.warning("not storing kernels in %s: expected %d MiB of free space", place, NEEDED_BYTES >> 20)
    return False


def _can_be_written_to(path: Path) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
        os.utime(path)  # it is in use
        return all(os.access(inner, os.W_OK | os.X_OK) for inner in (path, *path.iterdir()) if inner.is_dir())
    except OSError:
        return False


def _mark(where: Path) -> Path:
    processor = f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"
    return where / f"{_COMPLETE}{hashlib.sha256(processor.encode()).hexdigest()[:16]}"


def _remove_unused(place: Path) -> None:
    """Remove folders of other versions that have long been unused. Running servers no longer read their folders."""
    oldest = time.time() - KEPT_UNUSED_S
    for path in (*place.glob(f"{PREFIX}*"), *place.glob(f"{_REMOVED}*")):
        try:
            if path.stat().st_mtime >= oldest and not path.name.startswith(_REMOVED):
                continue
            # Rename first, so that a partly removed folder does not look complete.
            gone = path.rename(path.with_name(f"{_REMOVED}{os.getpid()}-{path.name.removeprefix(_REMOVED)}"))
        except OSError:  # already removed, or another user's
            continue
        shutil.rmtree(gone, ignore_errors=True)
