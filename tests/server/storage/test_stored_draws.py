"""Which draws of a queue can be repeated after kills and power losses."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from replay_server.storage.delivery_log import ReaderStamp
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.draws import Draw
from replay_server.table.table import NewRows, Table

from tests.support.drawing import draw_batch, draw_batch_again
from tests.support.inserting import insert_all
from tests.support.rows import WHOLE, columns_of

STAMP = ReaderStamp(b"a reader's id: 1", 1, 0)
DRAWN = Draw(3, beta=0.0)
CAPACITY = 64


def rows(first: int, count: int) -> NewRows:
    return NewRows(columns_of(np.arange(first, first + count)), count)


def full_ring(parent: Path, *, checked: bool) -> Table:
    """A queue whose next insert overwrites the rows of a draw that can still be repeated: the first ones."""
    table = Table(TableDirectory.create(parent, TableConfig("queue", WHOLE, CAPACITY, "fifo"), checked=checked))
    insert_all(table, rows(0, CAPACITY))
    draw_batch(table, DRAWN, STAMP)
    draw_batch(table, Draw(CAPACITY - DRAWN.batch_size, beta=0.0))
    insert_all(table, rows(CAPACITY, table.config.slots - CAPACITY))
    batch = draw_batch_again(table, DRAWN, STAMP)
    assert batch is not None
    assert batch.keys.tolist() == [0, 1, 2]
    return table


def test_rows_are_not_repeated_that_an_insert_was_overwriting_before_several_kills(tmp_path: Path) -> None:
    table = full_ring(tmp_path, checked=False)
    table.store(rows(table.inserted, 20), None)  # and no further: the server is killed
    for _ in range(3):
        assert draw_batch_again(table, DRAWN, STAMP) is None
        folder = table.directory.folder
        table.close()
        table = Table(TableDirectory.open(folder))
    table.close()


def test_no_draw_is_repeated_after_a_power_loss(tmp_path: Path) -> None:
    """Rows that were delivered are not verified: here, the disk has the rows of a later insert, but not its header."""
    table = full_ring(tmp_path, checked=True)
    table.directory.sync(table.directory.sync_point())
    folder, on_disk = table.directory.folder, tmp_path / "on-disk"
    on_disk.mkdir()
    for name in ("checksums.bin", "header.bin", "writers.bin"):
        shutil.copy(folder / name, on_disk / name)
    draw_batch(table, DRAWN)
    insert_all(table, rows(table.inserted, 20))
    table.close()
    shutil.copytree(on_disk, folder, dirs_exist_ok=True)
    for _ in range(2):
        table = Table(TableDirectory.open(folder, may_be_torn=True))
        assert draw_batch_again(table, DRAWN, STAMP) is None
        table.close()
