"""Restoring checkpoints: all tables or none, with every backend."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from replay_server.checkpoint import reading
from replay_server.checkpoint.manifest import CheckpointRemovedError, TableManifest
from replay_server.checkpoint.reading import restore, verify
from replay_server.checkpoint.snapshot import take_snapshots
from replay_server.checkpoint.writing import write_checkpoint
from replay_server.files.mapped_file import NoSpaceError
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
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


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("broken", ["a", "b", "c"])
def test_without_room_for_all_tables_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, checked: bool
) -> None:
    checkpoint = asyncio.run(checkpoint_of_three(tmp_path))
    (tmp_path / "tables").mkdir()
    fill = reading._fill

    def full(folder: Path, table: TableManifest, directory: TableDirectory) -> None:
        if table.config.name == broken:
            raise NoSpaceError(errno.ENOSPC, "no room")
        fill(folder, table, directory)

    with monkeypatch.context() as small:
        small.setattr(reading, "_fill", full)
        with pytest.raises(NoSpaceError):
            restore(checkpoint, tmp_path / "tables", checked=checked)
    assert list((tmp_path / "tables").iterdir()) == []
    restore(checkpoint, tmp_path / "tables", checked=checked)
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["a", "b", "c"]


def test_a_checkpoint_that_is_removed_after_it_was_verified_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = asyncio.run(checkpoint_of_three(tmp_path))
    (tmp_path / "tables").mkdir()
    fill = reading._fill

    def removed_meanwhile(folder: Path, table: TableManifest, directory: TableDirectory) -> None:
        if table.config.name == "b":
            shutil.rmtree(checkpoint)
        fill(folder, table, directory)

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
