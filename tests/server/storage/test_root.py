"""The directory of a server: locked while it runs, removed later."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from replay_server.files import held_folders
from replay_server.files.owner import InUseError
from replay_server.storage.root import TEMPORARY, Root

from tests.support.owner_records import change_record


def abandoned(parent: Path) -> Path:
    """A memory directory whose server was killed."""
    root = Root.in_memory(parent)
    (root.tables / "table").mkdir()
    (root.tables / "table" / "column-000.bin").write_bytes(b"rows")
    root.temporary = False
    root.close()
    return root.path


def test_a_root_in_memory_goes_with_its_server(tmp_path: Path) -> None:
    root = Root.in_memory(tmp_path)
    assert root.tables.is_dir()
    (root.tables / "table").mkdir()
    root.close()
    assert list(tmp_path.iterdir()) == []


def test_a_durable_root_stays(tmp_path: Path) -> None:
    root = Root.durable(tmp_path / "a" / "b")
    (root.tables / "table").mkdir()
    root.close()
    again = Root.durable(tmp_path / "a" / "b")
    assert [path.name for path in again.tables.iterdir()] == ["table"]
    again.close()


def test_a_root_has_one_server_at_a_time(tmp_path: Path) -> None:
    first = Root.durable(tmp_path)
    with pytest.raises(InUseError, match=str(tmp_path)):
        Root.durable(tmp_path)
    first.close()
    Root.durable(tmp_path).close()


def test_a_root_that_was_refused_leaks_no_descriptor(tmp_path: Path) -> None:
    first = Root.durable(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(InUseError):
            Root.durable(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
    first.close()


def test_nobody_else_can_look_into_a_root(tmp_path: Path) -> None:
    root = Root.durable(tmp_path / "data")
    for path in (root.path, root.tables):
        assert path.stat().st_mode & 0o077 == 0
    root.close()


def test_what_is_abandoned_is_swept_and_what_lives_is_not(tmp_path: Path) -> None:
    dead = {abandoned(tmp_path) for _ in range(1)}
    living = Root.in_memory(tmp_path)
    assert not any(path.exists() for path in dead), "a new server sweeps"
    dead = {abandoned(tmp_path)}
    assert set(held_folders.sweep(tmp_path, TEMPORARY)) == dead
    assert living.path.exists()
    assert held_folders.sweep(tmp_path, TEMPORARY) == []
    living.close()


def test_what_is_not_a_root_is_not_swept(tmp_path: Path) -> None:
    (tmp_path / "replay-server-being-made").mkdir()
    (tmp_path / "somebody-elses").mkdir()
    assert held_folders.sweep(tmp_path, TEMPORARY) == []
    assert len(list(tmp_path.iterdir())) == 2


def test_a_root_that_is_being_swept_is_taken_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a server that starts there meanwhile would lose its tables."""
    dead = abandoned(tmp_path)
    removed = shutil.rmtree
    refused = []

    def take_then_remove(path: Path, ignore_errors: bool = False) -> None:
        with pytest.raises(InUseError):
            Root.durable(path)
        refused.append(path)
        removed(path, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", take_then_remove)
    assert held_folders.sweep(tmp_path, TEMPORARY) == [dead]
    assert refused == [dead]


def test_a_server_whose_new_root_is_being_swept_before_it_is_locked_makes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, sweepers = fcntl.flock, []

    def lock_second(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        (folder,) = tmp_path.iterdir()
        sweepers.append((folder / "lock").open())
        fcntl.flock(sweepers[0], fcntl.LOCK_EX)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_second)
    root = Root.in_memory(tmp_path)
    assert list(tmp_path.iterdir()) == [root.path]
    assert root.tables.is_dir()
    root.close()
    sweepers[0].close()


def test_a_folder_that_nobody_says_to_own_is_not_swept(tmp_path: Path) -> None:
    """A server may just be making it."""
    folder = tmp_path / "replay-server-new"
    folder.mkdir()
    (folder / "lock").touch()
    assert held_folders.sweep(tmp_path, TEMPORARY) == []
    assert folder.exists()


def test_what_a_server_of_another_boot_or_machine_has_is_not_swept(tmp_path: Path) -> None:
    """Its lock may be one that this machine does not see."""
    theirs = abandoned(tmp_path)
    change_record(theirs, boot_id="0" * 36)
    copy = tmp_path / "replay-server-copy"
    shutil.copytree(abandoned(tmp_path), copy)
    assert copy not in held_folders.sweep(tmp_path, TEMPORARY)
    assert theirs.exists()
    assert copy.exists()


def test_what_servers_left_before_the_machine_started_again_is_named_with_its_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    names = ("replay-server-1", "replay-server-2 of 2", "replay-server-theirs")
    *left, theirs = (abandoned(elsewhere).rename(tmp_path / name) for name in names)
    (left[0] / "tables" / "table" / "column-000.bin").write_bytes(bytes(3_000_000))
    for folder in left:
        change_record(folder, boot_id="0" * 36)
    change_record(theirs, boot_id="0" * 36, host="elsewhere")
    assert held_folders.sweep(tmp_path, TEMPORARY) == []
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith("3 MB are in folders")
    assert said.endswith(f"rm -r {left[0]} '{left[1]}'")
    assert all(folder.exists() for folder in (*left, theirs))


def nested(folder: Path, depth: int) -> None:
    """Create nested folders, deeper than the longest path."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("in", dir_fd=here)
        deeper = os.open("in", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)


def remove_nested(folder: Path) -> None:
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_folders_in_folders_do_not_keep_a_server_from_starting(tmp_path: Path) -> None:
    dead = abandoned(tmp_path)
    nested(dead, 1_500)
    try:
        held_folders.sweep(tmp_path, TEMPORARY)
        Root.in_memory(tmp_path).close()
    finally:
        remove_nested(dead)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")
def test_what_another_user_left_is_not_touched(tmp_path: Path) -> None:
    theirs = abandoned(tmp_path)
    theirs.chmod(0o777)
    os.chown(theirs, 54_321, 54_321)
    assert held_folders.sweep(tmp_path, TEMPORARY) == []
    assert (theirs / "tables" / "table" / "column-000.bin").exists()


def test_what_only_looks_like_a_root_is_passed_over(tmp_path: Path) -> None:
    elsewhere, memory = tmp_path / "elsewhere", tmp_path / "memory"
    elsewhere.mkdir()
    memory.mkdir()
    (elsewhere / "lock").touch()
    (memory / "replay-server-link").symlink_to(elsewhere)
    (memory / "replay-server-file").touch()
    (memory / "replay-server-pipe").mkdir()
    os.mkfifo(memory / "replay-server-pipe" / "lock")
    (memory / "replay-server-lock").mkdir()
    (memory / "replay-server-lock" / "lock").symlink_to(elsewhere / "lock")
    assert held_folders.sweep(memory, TEMPORARY) in ([], [memory / "replay-server-pipe"])
    assert (elsewhere / "lock").exists()
    assert held_folders.sweep(tmp_path / "nowhere", TEMPORARY) == []
