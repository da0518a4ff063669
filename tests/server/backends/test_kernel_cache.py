"""Places of compiled kernels: other versions of the code never find them."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import replay_proto
import replay_server
from replay_server.kernels import kernel_cache

from tests.support.small_disk import mounted_disk

NOWHERE = "/proc/nobody"
"""A path at which no user can create a folder."""
POWERLESS = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"] if os.getuid() == 0 else []
"""Runs a command without capabilities, so that even root may not write everywhere."""
pytestmark = pytest.mark.skipif(bool(POWERLESS) and not shutil.which("setpriv"), reason="needs setpriv")
CALLEE = """
from replay_server.kernels.compile import part_of_kernel

@part_of_kernel
def callee(number: int) -> int:
    return number + {step}
"""
CALLER = """
from replay_server.kernels.compile import kernel
from replay_server.callee import callee

@kernel
def caller(number: int) -> int:
    return callee(number)
"""
USERS = """
# Loads numba once, all of it, which takes a second, and is forked for each process of a user that is asked for.
import json, os, sys, tempfile
import numba, numpy

numba.njit(lambda number: number + 1)(0)
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
else:
    sys.exit()
os.environ.clear()
os.environ.update(asked["variables"])
tempfile.tempdir = None
sys.path.insert(0, asked["site"])
for number, name in ((1, "said"), (2, "complained")):
    with open(asked[name], "w") as file:
        os.dup2(file.fileno(), number)

from replay_server.caller import caller
from replay_server.kernels import kernel_cache
print(caller(0), sum(caller.stats.cache_hits.values()), kernel_cache.folder())
"""
Call = Callable[[Path, Mapping[str, str]], tuple[int, int, Path]]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder for an installation and the files of its processes."""
    (tmp_path / "tmp").mkdir()
    yield tmp_path
    for path in (tmp_path, *tmp_path.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)


def install(place: Path, step: int) -> Path:
    """Install a version of the server whose callee adds ``step``, in a read-only place."""
    site = place / "site"
    if site.exists():
        for path in (site, *site.rglob("*")):
            path.chmod(0o755)
        shutil.rmtree(site)
    for package in (replay_server, replay_proto):
        source = Path(str(package.__file__)).parent
        shutil.copytree(source, site / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    (site / "replay_server" / "callee.py").write_text(CALLEE.format(step=step))
    (site / "replay_server" / "caller.py").write_text(CALLER)
    for path in (site, *site.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return site


@pytest.fixture(scope="module")
def call() -> Iterator[Call]:
    """Calls the kernel in a process whose user may not write to the installation.

    It returns the kernel's result, the number of cache hits, and the path of the cache.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    with subprocess.Popen(
        [*POWERLESS, sys.executable, "-P", "-c", USERS],
        env=inherited,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as users:
        assert users.stdin is not None
        assert users.stdout is not None
        asked, answered = users.stdin, users.stdout

        def ask(place: Path, variables: Mapping[str, str]) -> tuple[int, int, Path]:
            said, complained = place / "said", place / "complained"
            given = {**inherited, "TMPDIR": str(place / "tmp"), **variables}
            files = {"site": str(place / "site"), "said": str(said), "complained": str(complained)}
            asked.write(json.dumps({"variables": given, **files}) + "\n")
            asked.flush()
            status = answered.readline()
            assert status == "0\n", complained.read_text()
            result, hits, folder = said.read_text().split()
            return int(result), int(hits), Path(folder)

        yield ask


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "HOME"])
def test_a_new_version_in_a_read_only_place_never_uses_kernels_of_the_old_one(
    call: Call, place: Path, variable: str
) -> None:
    writable = place / "cache"
    nowhere = {"HOME": NOWHERE, "XDG_CACHE_HOME": ""}
    variables = {**nowhere, variable: str(writable)}
    install(place, step=1)
    first = call(place, variables)
    again = call(place, variables)
    install(place, step=2)
    second = call(place, variables)
    assert (first[0], again[0], second[0]) == (1, 1, 2)
    assert (first[1], again[1], second[1]) == (0, 1, 0), "kernels are kept for the same version, and for no other"
    assert all(folder.is_relative_to(writable) for _, _, folder in (first, again, second))
    assert first[2] == again[2] != second[2]


def test_without_any_writable_place_kernels_go_with_their_process(call: Call, place: Path) -> None:
    install(place, step=1)
    result, _, folder = call(place, {"HOME": NOWHERE, "XDG_CACHE_HOME": ""})
    assert result == 1
    assert folder.is_relative_to(place / "tmp")
    assert list((place / "tmp").iterdir()) == []


def test_kernels_in_a_place_that_became_read_only_are_used_there(call: Call, place: Path) -> None:
    cache = place / "cache"
    install(place, step=1)
    variables = {"HOME": NOWHERE, "XDG_CACHE_HOME": "", "NUMBA_CACHE_DIR": str(cache)}
    _, _, folder = call(place, variables)
    kernel_cache.set_complete(folder)
    for path in (cache, *cache.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    (place / "tmp").rmdir()
    assert call(place, {**variables, "TMPDIR": NOWHERE}) == (1, 1, folder)


def test_a_version_that_nobody_has_used_for_weeks_is_removed(call: Call, place: Path) -> None:
    cache = place / "cache"
    old, recent = (cache / f"{kernel_cache.PREFIX}{name}" for name in ("old", "recent"))
    old.mkdir(parents=True)
    recent.mkdir()
    (old / "kernel.nbi").touch()
    days = 24 * 3600
    os.utime(old, (0, time.time() - 40 * days))
    os.utime(recent, (0, time.time() - 7 * days))
    install(place, step=1)
    _, _, folder = call(place, {"NUMBA_CACHE_DIR": str(cache)})
    assert {path.name for path in cache.iterdir()} == {recent.name, folder.name}


def test_kernels_that_a_loss_of_power_tore_are_compiled_again(call: Call, place: Path) -> None:
    variables = {"NUMBA_CACHE_DIR": str(place / "cache")}
    install(place, step=1)
    call(place, variables)
    for kind, content in (("nbi", b""), ("nbi", b"\x80\x04garbage"), ("nbc", bytes(5000))):
        torn = list((place / "cache").rglob(f"*.{kind}"))
        assert torn
        for path in torn:
            path.write_bytes(content)
        assert call(place, variables)[:2] == (1, 0), f"{kind} of {content[:9]!r}"
        assert call(place, variables)[:2] == (1, 1), f"after {kind} of {content[:9]!r}"


def test_kernels_are_not_kept_where_there_is_no_room(call: Call, place: Path) -> None:
    install(place, step=1)
    with mounted_disk(place / "small", 1) as small:
        result, _, folder = call(place, {"HOME": NOWHERE, "XDG_CACHE_HOME": "", "NUMBA_CACHE_DIR": str(small)})
        assert result == 1
        assert folder.is_relative_to(place / "tmp")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("what", ["the directory", "a kernel"])
def test_kernels_of_another_user_are_not_loaded(call: Call, place: Path, what: str) -> None:
    cache = place / "cache"
    variables = {"HOME": NOWHERE, "XDG_CACHE_HOME": "", "NUMBA_CACHE_DIR": str(cache)}
    install(place, step=1)
    call(place, variables)
    cache.chmod(0o755)
    os.chown(cache if what == "the directory" else next(cache.rglob("*.nbc")), 54_321, 54_321)
    result, hits, folder = call(place, variables)
    assert (result, hits) == (1, 0)
    assert not folder.is_relative_to(cache)


def test_what_a_compilation_that_was_cut_short_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "backends").mkdir()
    left = tmp_path / "backends" / "kernel.1.nbc"
    left.touch()
    kernel_cache.set_complete(tmp_path)
    kernel_cache.remove_unfinished(tmp_path)
    assert left.exists()
    next(tmp_path.glob("complete-*")).unlink()
    kernel_cache.remove_unfinished(tmp_path)
    assert not left.exists()


def test_kernels_use_nothing_of_this_project_that_the_digest_does_not_cover() -> None:
    covered = kernel_cache.sources()
    root = Path(str(replay_server.__file__)).parent
    for source in covered:
        if source.parent == root / "kernels":
            continue
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if module.startswith("replay_server"):
                path = root.joinpath(*module.split(".")[1:])
                assert {path.with_suffix(".py"), path / "__init__.py"} & covered, f"{source} imports {module}"
            assert not module.startswith("replay_proto") or module == "replay_proto.errors", f"{source}: {module}"
