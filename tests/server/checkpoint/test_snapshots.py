"""Checkpoints during inserts: overwritten rows are left out, and the rest is consistent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from replay_server.checkpoint import snapshot as snapshots
from replay_server.checkpoint import writing
from replay_server.checkpoint.reading import restore
from replay_server.checkpoint.snapshot import take_snapshots
from replay_server.checkpoint.writing import write_checkpoint
from replay_server.errors import StoppedError
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.table import NewRows, Table

from tests.support.inserting import insert_all
from tests.support.invariants import check_table
from tests.support.rows import WHOLE, columns_of, values_in

CAPACITY = 1000
SLACK = 64


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    """A table whose rows have their keys as values and priorities."""
    (tmp_path / "tables").mkdir()
    made = Table(TableDirectory.create(tmp_path / "tables", TableConfig("table", WHOLE, CAPACITY)))
    insert(made, 1500)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat few rows as many: copy nothing on the event loop, and only small parts in the worker thread."""
    monkeypatch.setattr(snapshots, "COPIED_ON_LOOP_BYTES", 0)
    monkeypatch.setattr(writing, "_CHUNK_BYTES", 100 * WHOLE.row_bytes)


def insert(table: Table, count: int) -> None:
    """Insert rows that have their keys as values."""
    values = np.arange(table.inserted, table.inserted + count)
    insert_all(table, NewRows(columns_of(values), count, values.astype(np.float64)))


def restored(folder: Path, tmp_path: Path) -> Table:
    """Restore the table of a checkpoint, and check its content."""
    (tmp_path / "restored").mkdir()
    restore(folder, tmp_path / "restored")
    again = Table(TableDirectory.open(tmp_path / "restored" / "table"))
    check_table(again)
    keys = np.arange(again.oldest, again.inserted)
    out = columns_of(np.zeros(len(keys), np.int64))
    again.directory.rows.gather(keys, out)
    values = values_in(b"".join(column.tobytes() for column in out.values()))
    np.testing.assert_array_equal(values, keys)
    np.testing.assert_array_equal(again.priorities(keys), keys * 1.0)
    return again


def before_every_copy(table: Table, action: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run ``action`` before each part of the rows is copied."""
    copy = snapshots.SnapshotRows.copy

    def copy_after_action(self: snapshots.SnapshotRows, first_key: int, count: int) -> object:
        if count:
            action()
        return copy(self, first_key, count)

    monkeypatch.setattr(snapshots.SnapshotRows, "copy", copy_after_action)


@pytest.mark.parametrize("rows", [1, 50, SLACK])
def test_inserts_that_do_not_overtake_the_copy_change_nothing(table: Table, tmp_path: Path, rows: int) -> None:
    (taken,) = asyncio.run(take_snapshots([table]))
    insert(table, rows)
    folder = tmp_path / "made"
    folder.mkdir()
    manifest = write_checkpoint(folder, [taken], 0.0, threading.Event())
    assert manifest.tables[0].left_out == 0
    again = restored(folder, tmp_path)
    assert (again.oldest, again.inserted) == (500, 1500)
    again.close()


@pytest.mark.parametrize("rows", [SLACK + 1, 300, 1000, 1064, 5000])
def test_rows_that_were_overwritten_are_left_out(table: Table, tmp_path: Path, rows: int) -> None:
    (taken,) = asyncio.run(take_snapshots([table]))
    insert(table, rows)
    folder = tmp_path / "made"
    folder.mkdir()
    (described,) = write_checkpoint(folder, [taken], 0.0, threading.Event()).tables
    again = restored(folder, tmp_path)
    assert again.inserted == 1500
    assert (again.size, again.oldest) == (described.size, described.state.floor)
    assert described.size + described.left_out == CAPACITY
    gone = min(rows - SLACK, CAPACITY)
    assert gone <= described.left_out <= min(gone + SLACK, CAPACITY)
    again.close()


@pytest.mark.parametrize("rows", [20, 150, 400])
def test_a_copy_that_is_overtaken_again_and_again_is_consistent(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    (taken,) = asyncio.run(take_snapshots([table]))
    before_every_copy(table, lambda: insert(table, rows), monkeypatch)
    folder = tmp_path / "made"
    folder.mkdir()
    (described,) = write_checkpoint(folder, [taken], 0.0, threading.Event()).tables
    again = restored(folder, tmp_path)
    assert again.inserted == 1500
    assert described.size + described.left_out == CAPACITY
    assert (described.left_out == 0) == (rows == 20)
    again.close()


@pytest.mark.parametrize("reset", [False, True])
def test_priorities_taken_over_several_turns_are_those_of_their_rows(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reset: bool
) -> None:
    monkeypatch.setattr(snapshots, "TURN_BYTES", 8 * 100)

    async def take_while_rows_come() -> snapshots.TableSnapshot:
        taking = asyncio.create_task(take_snapshots([table]))
        while not taking.done():
            await asyncio.sleep(0)
            insert(table, 30)
            if reset and table.inserted > 1600:
                table.reset()
        return (await taking)[0]

    taken = asyncio.run(take_while_rows_come())
    folder = tmp_path / "made"
    folder.mkdir()
    write_checkpoint(folder, [taken], 0.0, threading.Event())
    again = restored(folder, tmp_path)
    assert taken.state.inserted == again.inserted == 1500 + 30 * (taken.state.inserted > 1500)
    assert again.size == 0 if reset else 0 < again.size < CAPACITY
    again.close()


def test_a_table_that_is_dropped_meanwhile_is_copied_all_the_same(table: Table, tmp_path: Path) -> None:
    (taken,) = asyncio.run(take_snapshots([table]))
    table.directory.hide()
    folder = tmp_path / "made"
    folder.mkdir()
    write_checkpoint(folder, [taken], 0.0, threading.Event())
    restored(folder, tmp_path).close()


def test_a_copy_ends_soon_when_the_server_does(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (taken,) = asyncio.run(take_snapshots([table]))
    cancelled = threading.Event()
    before_every_copy(table, cancelled.set, monkeypatch)
    folder = tmp_path / "made"
    folder.mkdir()
    with pytest.raises(StoppedError):
        write_checkpoint(folder, [taken], 0.0, cancelled)
    assert (folder / "table" / "column-000.bin").stat().st_size == 100 * 8
