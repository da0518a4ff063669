"""The memory limit of a container: an insert, a table or a restore that would exceed it is refused."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from replay_server.auth import Caller
from replay_server.catalog import Catalog
from replay_server.checkpoint.reading import restore
from replay_server.checkpoint.snapshot import take_snapshots
from replay_server.checkpoint.writing import write_checkpoint
from replay_server.errors import RequestError
from replay_server.files.mapped_file import RESERVE_STEP_BYTES, NoSpaceError
from replay_server.files.memory_limit import MemoryLimit, MemoryUse, is_in_memory
from replay_server.storage.root import Root
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.table import NewRows, Table

from tests.support.rows import WHOLE, columns_of

MB = 1 << 20
SHM = Path("/dev/shm")
FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    2: ("memory.max", "memory.current", ""),
}


class Groups:
    """The files of a control group and of the one around it, like those of the kernel."""

    def __init__(self, folder: Path, version: int, path: str = "/around/own") -> None:
        self.top = folder / "cgroup"
        self.own = folder / "own"
        self.own.write_text(f"9:cpu:/elsewhere\n4:memory:{path}\n" if version == 1 else f"0::{path}\n")
        self.limit, self.used, self.prefix = FILES[version]
        self.memory_top = self.top / "memory" if version == 1 else self.top

    def set(self, path: str, limit: int | str, used: int, cached: int = 0) -> Path:
        """Set the limit and the use of a group, of which some is page cache."""
        folder = self.memory_top / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.limit).write_text(f"{limit}\n")
        (folder / self.used).write_text(f"{used}\n")
        cache = {"anon": used, "active_file": cached // 4, "inactive_file": cached - cached // 4}
        stat = "".join(f"{self.prefix}{name} {size}\n" for name, size in cache.items())
        (folder / "memory.stat").write_text(f"shmem 7\n{stat}")
        return folder / self.limit

    def memory(self) -> MemoryLimit:
        return MemoryLimit(self.top, self.own)


@pytest.fixture(params=[1, 2])
def groups(tmp_path: Path, request: pytest.FixtureRequest) -> Groups:
    return Groups(tmp_path, request.param)


def test_the_group_with_the_least_room_counts_and_page_cache_does_not(groups: Groups) -> None:
    around = groups.set("around", 400 * MB, 390 * MB, cached=100 * MB)
    own = groups.set("around/own", 300 * MB, 100 * MB)
    assert groups.memory().read() == MemoryUse(400 * MB, 290 * MB, around)
    groups.set("around", 400 * MB, 390 * MB, cached=390 * MB)
    assert groups.memory().read() == MemoryUse(300 * MB, 100 * MB, own)


@pytest.mark.parametrize("no_limit", ["max", (1 << 63) - 4096])
def test_a_group_without_a_limit_allows_everything(groups: Groups, no_limit: int | str) -> None:
    groups.set("around/own", no_limit, 100 * MB)
    memory = groups.memory()
    assert memory.read() is None
    memory.check(1 << 50)


def test_in_a_container_the_group_of_the_host_is_found_at_the_top(tmp_path: Path) -> None:
    groups = Groups(tmp_path, 1, path="/docker/0123abcd")
    top = groups.set("", 200 * MB, 50 * MB)
    assert groups.memory().read() == MemoryUse(200 * MB, 50 * MB, top)


def test_without_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert MemoryLimit(tmp_path / "none", tmp_path / "none").read() is None


def test_a_refusal_names_limit_use_and_file(groups: Groups) -> None:
    file = groups.set("around/own", 100 * MB, 60 * MB)
    groups.memory().check(8 * MB)
    with pytest.raises(NoSpaceError, match=r"memory limit of 104.9 MB, 62.9 MB of which are used") as refused:
        groups.memory().check(8 * MB + 1)
    assert refused.value.filename == str(file)


@pytest.mark.skipif(not SHM.is_dir() or not is_in_memory(SHM), reason="no tmpfs at /dev/shm")
class TestTables:
    """Tables in memory."""

    def test_an_insert_is_refused_before_the_limit_and_goes_on_when_there_is_room(self, groups: Groups) -> None:
        rows = RESERVE_STEP_BYTES // 8

        async def test() -> None:
            groups.set("around/own", 400 * MB, 100 * MB)
            root = Root.in_memory(SHM)
            catalog = Catalog(root, memory=groups.memory())
            table, _ = await catalog.create(TableConfig("t", WHOLE, rows))
            insert(table, 0)
            groups.set("around/own", 400 * MB, 399 * MB)
            with pytest.raises(RequestError, match=r"no space left for table 't'.*memory limit of 419.4 MB"):
                fill(table)
            assert 0 < table.inserted < rows, "what is reserved is still used"
            before = table.inserted
            with pytest.raises(RequestError, match="no space left for table 'another'"):
                await catalog.create(TableConfig("another", WHOLE, rows))
            with pytest.raises(RequestError, match="no space left for table 't'"):
                await catalog.reset(catalog.lease("t"), Caller())
            assert table.size == before
            groups.set("around/own", 400 * MB, 100 * MB)
            insert(table, before)
            assert await catalog.reset(catalog.lease("t"), Caller()) > before
            catalog.close()
            root.close()

        asyncio.run(test())

    def test_a_restore_is_refused_and_leaves_nothing(self, groups: Groups, tmp_path: Path) -> None:
        root = Root.in_memory(SHM)
        try:
            asyncio.run(checkpoint_of_a_table(tmp_path / "checkpoint", root))
            groups.set("around/own", 100 * MB, 99 * MB)
            with pytest.raises(NoSpaceError, match="memory limit"):
                restore(tmp_path / "checkpoint", root.tables, memory=groups.memory())
            assert list(root.tables.iterdir()) == []
            groups.set("around/own", 100 * MB, 10 * MB)
            restore(tmp_path / "checkpoint", root.tables, memory=groups.memory())
        finally:
            root.close()

    def test_an_opened_table_needs_no_more_memory_for_the_rows_that_it_had(self, groups: Groups) -> None:
        groups.set("around/own", 400 * MB, 100 * MB)
        with tempfile.TemporaryDirectory(dir=SHM) as folder:
            config = TableConfig("t", WHOLE, RESERVE_STEP_BYTES // 8)
            table = Table(TableDirectory.create(Path(folder), config), groups.memory())
            while table.inserted < table.config.slots:
                insert(table, table.inserted)
            reserved, path = table.directory.reserved_bytes, table.directory.folder
            table.close()
            groups.set("around/own", 400 * MB, 399 * MB)
            again = Table(TableDirectory.open(path), groups.memory())
            assert again.directory.reserved_bytes == pytest.approx(reserved, rel=0.01)
            for _ in range(3):
                insert(again, again.inserted)
            again.close()


def fill(table: Table) -> None:
    while table.inserted < table.config.capacity:
        insert(table, table.inserted)


def insert(table: Table, first: int) -> None:
    count = table.config.rows_at_once
    table.insert(NewRows(columns_of(np.arange(first, first + count)), count), None)


async def checkpoint_of_a_table(folder: Path, root: Root) -> None:
    catalog = Catalog(root)
    table, _ = await catalog.create(TableConfig("t", WHOLE, 100))
    insert(table, 0)
    folder.mkdir()
    write_checkpoint(folder, await take_snapshots([table]), 0.0, threading.Event())
    await catalog.drop("t", b"")


def test_directories_on_disk_are_not_in_memory(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    device = tmp_path.stat().st_dev
    line = f"25 24 {device >> 8 & 0xFFF}:{device & 0xFF} / / rw shared:1 - {{}} none rw\n"
    for kind, expected in (("ext4", False), ("tmpfs", True)):
        mounts.write_text(line.format(kind))
        assert is_in_memory(tmp_path, mounts) == expected
    mounts.write_text("")
    assert not is_in_memory(tmp_path, mounts)
