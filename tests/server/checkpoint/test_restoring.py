"""Restoring checkpoints: all tables or none, with every backend."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_server.checkpoint import reading
from replay_server.checkpoint.manifest import CheckpointManifest, CheckpointRemovedError, TableManifest
from replay_server.checkpoint.reading import RestoreError, restore, resume, verify
from replay_server.checkpoint.snapshot import take_snapshots
from replay_server.checkpoint.writing import write_checkpoint
from replay_server.files.long_work import LongWork
from replay_server.files.mapped_file import NoSpaceError
from replay_server.storage import restored_tables
from replay_server.storage.format import CHECKPOINT_MANIFEST_FILE
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory, finished_tables
from replay_server.table.oldest_first import OldestFirst
from replay_server.table.table import NewRows, Table

from tests.support.inserting import insert_all
from tests.support.invariants import check_table
from tests.support.rows import WHOLE, columns_of


def table_of(folder: Path, config: TableConfig, rows: int) -> Table:
    table = Table(TableDirectory.create(folder, config))
    insert_all(table, NewRows(columns_of(np.arange(rows)), rows))
    return table


async def write(folder: Path, *tables: Table) -> Path:
    folder.mkdir()
    write_checkpoint(folder, await take_snapshots(tables), 0.0, threading.Event())
    return folder


async def checkpoint_of_three(tmp_path: Path) -> Path:
    (tmp_path / "made").mkdir()
    tables = [table_of(tmp_path / "made", TableConfig(name, WHOLE, capacity=100), 50) for name in "abc"]
    checkpoint = await write(tmp_path / "checkpoint", *tables)
    for table in tables:
        table.close()
    return checkpoint


def tables_in(folder: Path) -> list[str]:
    return [path.name for path in finished_tables(folder)]


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("broken", ["a", "b", "c"])
def test_without_room_for_all_tables_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, checked: bool
) -> None:
    checkpoint = asyncio.run(checkpoint_of_three(tmp_path))
    (tmp_path / "tables").mkdir()
    fill = reading._fill

    def full(folder: Path, table: TableManifest, work: LongWork, directory: TableDirectory, **_: Any) -> None:
        if table.config.name == broken:
            raise NoSpaceError(errno.ENOSPC, "no room")
        fill(folder, table, work, directory)

    with monkeypatch.context() as small:
        small.setattr(reading, "_fill", full)
        with pytest.raises(NoSpaceError):
            restore(checkpoint, tmp_path / "tables", checked=checked)
    assert list((tmp_path / "tables").iterdir()) == []
    restore(checkpoint, tmp_path / "tables", checked=checked)
    assert tables_in(tmp_path / "tables") == ["a", "b", "c"]


def test_a_checkpoint_that_is_removed_after_it_was_verified_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = asyncio.run(checkpoint_of_three(tmp_path))
    (tmp_path / "tables").mkdir()
    fill = reading._fill

    def removed_meanwhile(
        folder: Path, table: TableManifest, work: LongWork, directory: TableDirectory, **_: Any
    ) -> None:
        if table.config.name == "b":
            shutil.rmtree(checkpoint)
        fill(folder, table, work, directory)

    monkeypatch.setattr(reading, "_fill", removed_meanwhile)
    with pytest.raises(CheckpointRemovedError, match=str(checkpoint)):
        restore(checkpoint, tmp_path / "tables")
    assert list((tmp_path / "tables").iterdir()) == []


def test_a_queue_that_holds_rows_for_a_waiting_draw_is_restored(tmp_path: Path) -> None:
    """Granted rows make room before they are delivered, so the queue contains more rows than its capacity."""
    config = TableConfig("queue", WHOLE, capacity=100, backend="fifo")
    (tmp_path / "made").mkdir()
    table = table_of(tmp_path / "made", config, 100)
    assert isinstance(table.gate, OldestFirst)
    assert table.gate.grant(30) == 30
    table.insert(NewRows(columns_of(np.arange(100, 130)), 30), None)
    assert table.size == 130
    checkpoint = asyncio.run(write(tmp_path / "checkpoint", table))
    table.close()
    (manifest,) = verify(checkpoint).tables
    assert manifest.size == 130
    (tmp_path / "tables").mkdir()
    restore(checkpoint, tmp_path / "tables")
    again = Table(TableDirectory.open(tmp_path / "tables" / "queue"))
    check_table(again)
    assert (again.oldest, again.inserted) == (0, 130)
    again.close()


DIES = 77


def restore_and_die(checkpoint: Path, tables: Path, at: str, nth: int) -> None:
    """Restore in a fork of this process that ends like a killed one, at the n-th call of a function of `Path`."""
    child = os.fork()
    if child == 0:
        calls, function = [0], getattr(Path, at)

        def counted(path: Path, *arguments: object, **options: object) -> object:
            calls[0] += tables in path.parents
            if calls[0] == nth:
                os._exit(DIES)
            return function(path, *arguments, **options)

        setattr(Path, at, counted)
        restore(checkpoint, tables)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == DIES


MOMENTS = {
    "before anything": ("mkdir", 1, []),
    "in the middle": ("mkdir", 3, []),
    "before they appear": ("rename", 4, []),
    "before the first is in its place": ("rename", 5, ["a", "b", "c"]),
    "before the last is in its place": ("rename", 7, ["a", "b", "c"]),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_all_tables_are_there_or_none_and_the_same_command_works(
    tmp_path: Path, moment: str
) -> None:
    checkpoint, tables = asyncio.run(checkpoint_of_three(tmp_path)), tmp_path / "tables"
    tables.mkdir()
    at, nth, expected = MOMENTS[moment]
    restore_and_die(checkpoint, tables, at, nth)
    without_restoring = shutil.copytree(tables, tmp_path / "copy")
    resume(without_restoring)
    assert tables_in(without_restoring) == expected
    restore(checkpoint, tables)
    assert tables_in(tables) == ["a", "b", "c"]
    restore(checkpoint, tables)
    restored_tables.settle(tables)
    with pytest.raises(RestoreError, match="table 'a' already exists"):
        restore(checkpoint, tables)
    for name in "abc":
        table = Table(TableDirectory.open(tables / name))
        check_table(table)
        assert table.size == 50
        table.close()


def test_another_checkpoint_is_not_taken_for_the_one_that_was_restored(tmp_path: Path) -> None:
    checkpoint, tables = asyncio.run(checkpoint_of_three(tmp_path)), tmp_path / "tables"
    other = shutil.copytree(checkpoint, tmp_path / "other")
    later = replace(CheckpointManifest.load(other), taken_s=1.0)
    (other / CHECKPOINT_MANIFEST_FILE).write_bytes(later.to_bytes())
    tables.mkdir()
    restore(checkpoint, tables)
    with pytest.raises(RestoreError, match="table 'a' already exists"):
        restore(other, tables)
    assert tables_in(tables) == ["a", "b", "c"]


def test_a_server_serves_although_it_cannot_forget_what_it_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, tables = asyncio.run(checkpoint_of_three(tmp_path)), tmp_path / "tables"
    tables.mkdir()
    restore(checkpoint, tables)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refuse)
        patch.setattr(os, "unlink", refuse)
        patch.setattr(os, "fsync", refuse)
        restored_tables.settle(tables)
    restore(checkpoint, tables)
    assert tables_in(tables) == ["a", "b", "c"]
