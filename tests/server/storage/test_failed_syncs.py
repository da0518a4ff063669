"""Failed syncs: nothing counts as synced prematurely, and the table recovers with the disk."""

from __future__ import annotations

import errno
import os
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from replay_server.files.mapped_file import MappedFile
from replay_server.storage.power_loss.place_checksums import Periods
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.table import NewRows, Table, WriterStamp

from tests.server.storage.test_power_loss import live_values
from tests.support.inserting import insert_all
from tests.support.power import PAGE_BYTES, copy_of, write_files
from tests.support.rows import WHOLE, columns_of

CAPACITY = 1500
MANY = 1200
"""Rows on several pages of every column, most of which are not written again."""
WRITER = b"0123456789abcdef"


class Disk:
    """The part of a table's files that is on disk, as in Linux.

    A failed sync marks its pages as clean: later syncs write them only if they are modified again.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int, code: int) -> None:
        self.random = random.Random(seed)
        self.code = code
        self.calls_until_failure: int | None = None
        self.failed = False
        self._on_disk: dict[str, bytearray] = {}
        self._clean: dict[str, bytes] = {}
        self._stored_anew: defaultdict[str, set[int]] = defaultdict(set)
        self._name_of: dict[int, str] = {}
        store_anew = MappedFile.store_anew

        def observed(file: MappedFile, start: int, stop: int) -> None:
            store_anew(file, start, stop)
            name = os.path.basename(os.readlink(f"/proc/self/fd/{file._file}"))
            self._stored_anew[name].update(range(start // PAGE_BYTES, -(-stop // PAGE_BYTES)))

        monkeypatch.setattr(MappedFile, "store_anew", observed)
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def begin(self, folder: Path) -> None:
        """Treat the current content as synced."""
        self._clean = copy_of(folder)
        self._on_disk = {name: bytearray(content) for name, content in self._clean.items()}

    def left(self) -> dict[str, bytes]:
        """The files after a power loss."""
        return {name: bytes(content) for name, content in self._on_disk.items()}

    def _sync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.name not in self._on_disk:
            return
        fails = False
        if self.calls_until_failure is not None:
            fails = self.calls_until_failure == 0
            self.calls_until_failure -= 1
        content = path.read_bytes()
        for page in self._dirty(path.name, content):
            start = page * PAGE_BYTES
            if not fails or self.random.random() < 0.3:
                self._on_disk[path.name][start : start + PAGE_BYTES] = content[start : start + PAGE_BYTES]
        self._clean[path.name] = content
        self._stored_anew[path.name].clear()
        if fails:
            self.failed = True
            raise OSError(self.code, os.strerror(self.code))

    def _dirty(self, name: str, content: bytes) -> Iterator[int]:
        clean = self._clean[name]
        for page in range(-(-len(content) // PAGE_BYTES)):
            start = page * PAGE_BYTES
            changed = clean[start : start + PAGE_BYTES] != content[start : start + PAGE_BYTES]
            if changed or page in self._stored_anew[name]:
                yield page


def insert(table: Table, values: range, sequence: int) -> None:
    table.insert(NewRows(columns_of(np.array(values)), len(values)), WriterStamp(WRITER, sequence))


def insert_many(table: Table, values: range) -> None:
    insert_all(table, NewRows(columns_of(np.array(values)), len(values)))


def record_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of files that are synced from now on."""
    synced: list[str] = []

    def record(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    monkeypatch.setattr(os, "fdatasync", record)
    return synced


def sync(table: Table) -> None:
    if table.directory.has_to_be_stored_anew:
        for _ in table.directory.store_anew():
            pass
    table.directory.sync(table.directory.sync_point())


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("failing", range(10))
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_counts_as_synced_outlives_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, failing: int, is_killed: bool
) -> None:
    """Whichever file fails to sync, and even if the server is killed before the next attempt."""
    disk = Disk(monkeypatch, failing, code)
    table = Table(
        TableDirectory.create(tmp_path, TableConfig("table", WHOLE, capacity=CAPACITY), checked=True),
    )
    folder = table.directory.folder
    disk.begin(folder)
    insert(table, range(20), 1)
    sync(table)
    insert_many(table, range(20, MANY - 20))
    insert(table, range(MANY - 20, MANY), 2)
    disk.calls_until_failure = failing
    if failing < 9:
        with pytest.raises(OSError, match=os.strerror(code)):
            sync(table)
        assert table.directory.unsynced == MANY - 20
        assert table.directory.has_to_be_stored_anew
    else:
        sync(table)
    assert disk.failed == (failing < 9), "a table has nine files that are synced"
    disk.calls_until_failure = None
    if is_killed:
        table.close()
        table = Table(TableDirectory.open(folder))
        assert table.directory.has_to_be_stored_anew == disk.failed
    insert(table, range(MANY, MANY + 20), 3)
    sync(table)
    assert table.directory.unsynced == 0
    table.close()
    write_files(folder, disk.left())
    table = Table(TableDirectory.open(folder, may_be_torn=True))
    assert live_values(table) == {key: key for key in range(MANY + 20)}
    assert table.directory.lost == 0
    assert not table.directory.has_to_be_stored_anew
    insert(table, range(MANY + 20, MANY + 30), 4)
    table.close()


@pytest.mark.parametrize("failing", range(9))
def test_a_sync_that_failed_leaves_what_was_synced_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    disk = Disk(monkeypatch, failing, errno.EIO)
    table = Table(TableDirectory.create(tmp_path, TableConfig("table", WHOLE, capacity=CAPACITY), checked=True))
    folder = table.directory.folder
    disk.begin(folder)
    insert(table, range(20), 1)
    sync(table)
    insert_many(table, range(20, MANY - 20))
    insert(table, range(MANY - 20, MANY), 2)
    disk.calls_until_failure = failing
    with pytest.raises(OSError, match="Input/output"):
        sync(table)
    table.close()
    write_files(folder, disk.left())
    table = Table(TableDirectory.open(folder, may_be_torn=True))
    found = live_values(table)
    assert found == {key: key for key in range(len(found))}
    assert 20 <= len(found) <= MANY
    table.close()


def test_what_is_stored_anew_is_dirty(tmp_path: Path) -> None:
    file = MappedFile(tmp_path / "file", 64 * PAGE_BYTES, create=True)
    file.reserve(file.size)
    file.bytes[:] = 7
    file.sync()
    if dirty_kb(tmp_path / "file"):
        pytest.skip("this file system does not tell what is on the disk")
    file.store_anew(0, file.size)
    assert dirty_kb(tmp_path / "file") == 64 * PAGE_BYTES // 1024
    assert (file.bytes == 7).all()
    file.close()


def dirty_kb(path: Path) -> int:
    """Kilobytes of a mapped file that the next sync would write."""
    found = 0
    is_ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            is_ours = line.endswith(str(path))
        elif is_ours and name in ("Shared_Dirty:", "Private_Dirty:"):
            found += int(values[0])
    return found


def test_a_table_that_cannot_be_synced_when_it_is_made_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))

    config = TableConfig("table", WHOLE, capacity=CAPACITY)
    with monkeypatch.context() as failing:
        failing.setattr("replay_server.storage.table_directory.sync_path", fail)
        with pytest.raises(OSError, match="Input/output"):
            TableDirectory.create(tmp_path, config, checked=True)
    with monkeypatch.context() as failing:
        synced: list[Path] = []
        failing.setattr(
            "replay_server.storage.table_directory.sync_path",
            lambda folder: fail(folder) if synced else synced.append(folder),
        )
        with pytest.raises(OSError, match="Input/output"):
            TableDirectory.create(tmp_path, config, checked=True)
    assert list(tmp_path.iterdir()) == []
    TableDirectory.create(tmp_path, config, checked=True).close()


def test_checksums_are_added_once_the_disk_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(TableDirectory.create(tmp_path, TableConfig("table", WHOLE, capacity=CAPACITY)))
    table.insert(NewRows(columns_of(np.arange(20)), 20), None)
    table.close()

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    directory = TableDirectory.open(tmp_path / "table")
    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="Input/output"):
            directory.add_checksums()
    directory.close()
    again = TableDirectory.open(tmp_path / "table")
    assert not again.is_checked
    again.add_checksums()
    assert not again.has_to_be_stored_anew
    again.close()
    whole = Table(TableDirectory.open(tmp_path / "table", may_be_torn=True))
    assert live_values(whole) == {key: key for key in range(20)}
    whole.close()


def test_files_of_rows_are_synced_only_after_an_insert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(TableDirectory.create(tmp_path, TableConfig("table", WHOLE, capacity=CAPACITY), checked=True))
    synced = record_syncs(monkeypatch)
    insert(table, range(20), 1)
    sync(table)
    everything = {path.name for path in table.directory.folder.glob("*.bin")}
    assert set(synced) == everything
    synced.clear()
    table.update(np.arange(20), np.ones(20))
    sync(table)
    assert synced == ["priorities.bin", "writers.bin", "header.bin", "synced.bin"]
    synced.clear()
    insert(table, range(20, 40), 2)
    sync(table)
    assert set(synced) == everything


def test_after_a_failed_sync_the_files_of_rows_are_synced_without_an_insert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, 0, errno.EIO)
    table = Table(TableDirectory.create(tmp_path, TableConfig("table", WHOLE, capacity=CAPACITY), checked=True))
    folder = table.directory.folder
    disk.begin(folder)
    insert(table, range(20), 1)
    sync(table)
    table.update(np.arange(20), np.ones(20))
    disk.calls_until_failure = 0
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        sync(table)
    synced = record_syncs(monkeypatch)
    sync(table)
    assert set(synced) == {path.name for path in folder.glob("*.bin")}


def test_a_sync_covers_the_updates_before_a_sync_that_failed() -> None:
    periods = Periods(8)
    periods.end_sync(periods.begin_sync())
    periods.updated(np.array([3]))
    periods.begin_sync()  # this sync fails
    periods.updated(np.array([5]))
    period = periods.begin_sync()
    periods.updated(np.array([6]))
    assert periods.updated_until(period, 8).tolist() == [3, 5]
    periods.end_sync(period)
    assert periods.may_update(np.array([3, 5]))
    assert not periods.may_update(np.array([6]))
