"""A disk that is slow for some tables: the others are still synced on time."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.caller import CalledTable, Caller
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

SLOW_TABLES = 12
SLOW_DISK = textwrap.dedent("""
    # Read by every interpreter that starts with this folder in its path.
    import os, time
    sync = os.fdatasync
    def fdatasync(file):
        while "/slow-" in os.readlink(f"/proc/self/fd/{file}") and os.path.exists(os.environ["DISK_IS_SLOW"]):
            time.sleep(0.01)
        sync(file)
    os.fdatasync = fdatasync
""")


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A file: while it exists, syncs of tables named "slow-..." block."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "sitecustomize.py").write_text(SLOW_DISK)
    return tmp_path / "disk" / "slow"


def wait_until_synced(table: CalledTable) -> None:
    wait_until(lambda: table.stats().unsynced == 0, f"{table.name} is synced")


def test_tables_that_the_disk_takes_long_over_delay_no_other_one(
    start_server: Callable[..., ServerProcess], call: Callable[[ServerProcess], Caller], slow: Path, tmp_path: Path
) -> None:
    paths = os.pathsep.join([str(slow.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    server = start_server(
        *("--durability", "power", "--sync-every", "0.05", "--data-dir", str(tmp_path / "data")),
        environment={"PYTHONPATH": paths, "DISK_IS_SLOW": str(slow)},
    )
    caller = call(server)
    slow_ones = [caller.create(f"slow-{number}", capacity=10) for number in range(SLOW_TABLES)]
    quick = caller.create("zebra", capacity=10_000)  # checked after all slow tables
    for table in (*slow_ones, quick):
        table.insert([1])
        wait_until_synced(table)
    slow.touch()
    for table in slow_ones:
        table.insert([2])
    for count in range(1, 6):
        quick.insert(np.arange(count))
        wait_until_synced(quick)
    assert [table.stats().unsynced for table in slow_ones] == [1] * SLOW_TABLES
    slow.unlink()
    for table in slow_ones:
        wait_until_synced(table)
    assert server.terminate() == 0
