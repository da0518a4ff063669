"""A disk that fails to sync: the server keeps serving, reports the data as unsynced, and recovers."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from replay_client import ReplayClient, StorageLostError
from replay_client.cli import lists
from rich.console import Console

from tests.support.caller import CalledTable, Caller
from tests.support.deadlines import wait_until
from tests.support.power import pretend_another_boot
from tests.support.refusals import refused
from tests.support.server_process import ServerProcess

POWER = ("--durability", "power", "--sync-every", "0.05")
REWRITING = "rewriting table"
FAILING_DISK = textwrap.dedent("""
    # Read by every interpreter that starts with this folder in its path.
    import errno, os
    sync = os.fdatasync
    def fdatasync(file):
        if os.path.exists(os.environ["DISK_FAILS"]):
            code = getattr(errno, open(os.environ["DISK_FAILS"]).read())
            raise OSError(code, os.strerror(code))
        sync(file)
    os.fdatasync = fdatasync
""")


class FailingDisk:
    """A disk that fails on command."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(FAILING_DISK)
        self._switch = folder / "fails"
        paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment = {"PYTHONPATH": paths, "DISK_FAILS": str(self._switch)}

    def fail(self, code: str) -> None:
        # Atomically, because the disk may be in use.
        written = self._switch.with_suffix(".new")
        written.write_text(code)
        written.rename(self._switch)

    def work(self) -> None:
        self._switch.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> FailingDisk:
    """The disk of the test's servers."""
    return FailingDisk(tmp_path / "disk")


def values(table: CalledTable) -> list[int]:
    found: list[int] = table.read(table.live_keys()).values.tolist()
    return found


@pytest.mark.parametrize("code", ["EIO", "ENOSPC"])
def test_service_goes_on_and_tells(
    start_server: Callable[..., ServerProcess], tmp_path: Path, disk: FailingDisk, code: str
) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"), *POWER, environment=disk.environment)
    with Caller(server.address) as caller:
        table = caller.create(capacity=1000)
        table.insert(range(100))
        wait_until(lambda: table.stats().unsynced == 0, "it is synced")
        disk.fail(code)
        table.insert(range(100, 150))
        wait_until(lambda: table.stats().failed_syncs > 2, "it is noticed, and tried again")
        table.insert(range(150, 200))
        assert table.stats().unsynced == 100
        assert table.sample(10).values.max() < 200
        server.wait_for_log(f"table {table.name} was not synced, a power loss would lose the last 50 rows")
        console = Console(width=200, record=True, file=io.StringIO())
        with ReplayClient(server.address) as client:
            console.print(lists.stats_view(client.stats(), server.address, table.name, 200))
        assert "100 rows not on disk" in console.export_text()
        disk.work()
        wait_until(lambda: table.stats().unsynced == 0, "it is synced once the disk works")
        server.wait_for_log(f"{REWRITING} {table.name}")
        assert values(table) == list(range(200))
    server.terminate()


def test_a_server_that_is_killed_meanwhile_leaves_it_to_the_next(
    start_server: Callable[..., ServerProcess], tmp_path: Path, disk: FailingDisk
) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"), *POWER, environment=disk.environment)
    with Caller(server.address) as caller:
        table = caller.create(capacity=1000)
        wait_until(lambda: table.stats().unsynced == 0, "it is synced")
        disk.fail("EIO")
        table.insert(range(100))
        wait_until(lambda: table.stats().failed_syncs > 0, "it is noticed")
    server.kill()
    disk.work()
    before = server.log()
    server.restart()
    with Caller(server.address) as caller:
        table = caller.table(table.name)
        wait_until(lambda: table.stats().unsynced == 0, "it is synced")
        server.wait_for_log(REWRITING, before=before)
        assert values(table) == list(range(100))


def test_a_server_that_ends_says_what_the_disk_did_not_take(
    start_server: Callable[..., ServerProcess], tmp_path: Path, disk: FailingDisk
) -> None:
    data = tmp_path / "data"
    server = start_server("--data-dir", str(data), *POWER, environment=disk.environment)
    with Caller(server.address) as caller:
        table = caller.create(capacity=1000)
        table.insert(range(100))
        disk.fail("EIO")
        table.insert(range(100, 120))
    assert server.terminate() == 1
    assert f"tables not synced to disk, which a power loss may damage: {table.name}: " in server.log()
    assert "Traceback" not in server.log()
    disk.work()
    # It did not shut down cleanly, so all data is verified after a reboot.
    pretend_another_boot(data)
    server.restart()
    server.wait_for_log("are valid after a power loss")
    with Caller(server.address) as caller:
        assert np.array_equal(values(caller.table(table.name)), np.arange(120))
    assert server.terminate() == 0


def test_a_directory_that_cannot_be_used_is_a_typed_error(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    server = start_server("--checkpoint-dir", str(folder))
    with Caller(server.address) as caller, ReplayClient(server.address) as client:
        caller.create().insert(range(10))
        folder.rename(tmp_path / "away")
        with refused("STORAGE_LOST", folder=str(folder)):
            caller.checkpoint()
        with pytest.raises(StorageLostError, match=f"{folder}/owner.json was removed while this server ran"):
            client.checkpoint()
        (tmp_path / "away").rename(folder)
        assert caller.checkpoint().name == "checkpoint-000001"
    assert "Traceback" not in server.wait_for_log(f"{folder} is back")
