"""Inserts interrupted midway, as by a kill: committed rows are intact, all other rows are gone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from replay_proto.framing import Array
from replay_server.backends import BACKENDS
from replay_server.errors import RequestError
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.table import NewRows, Table, WriterStamp

from tests.support.inserting import insert_all
from tests.support.invariants import check_table
from tests.support.rows import WHOLE, columns_of, values_in

WRITER = b"0123456789abcdef"
TOO_WIDE = np.zeros((40, 5))
"""A value that fits into no column."""


def rows(first: int, count: int) -> NewRows:
    """Rows with consecutive values."""
    return NewRows(columns_of(np.arange(first, first + count)), count)


def values(table: Table) -> list[int]:
    """Values of the live rows, after checking that the rows are intact."""
    keys = np.arange(table.oldest, table.inserted)
    out: dict[str, Array] = dict(columns_of(np.zeros(len(keys), np.int64)))
    table.directory.rows.gather(keys, out)
    return list(map(int, values_in(b"".join(column.tobytes() for column in out.values()))))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("broken", list(WHOLE))
@pytest.mark.parametrize("before", [0, 5, 100, 164, 170])
def test_an_insert_that_breaks_off_was_never_there(tmp_path: Path, backend: str, broken: str, before: int) -> None:
    """The columns before the broken one have already been written, possibly across the end of the ring."""
    table = Table(TableDirectory.create(tmp_path, TableConfig("table", WHOLE, capacity=100, backend=backend)))
    for first in range(0, before, 50):
        table.insert(rows(first, min(50, before - first)), None)
    expected, oldest = values(table), table.oldest
    new = rows(before, 40)
    columns = dict(new.columns)
    columns[broken] = TOO_WIDE
    with pytest.raises(ValueError, match="broadcast"):
        table.insert(NewRows(columns, 40), WriterStamp(WRITER, 1))
    folder = table.directory.folder
    table.close()

    table = Table(TableDirectory.open(folder))
    check_table(table)
    assert (table.inserted, table.oldest) == (before, oldest)
    assert values(table) == expected
    assert table.insert(rows(before, 40), WriterStamp(WRITER, 1)) == range(before, before + 40)
    assert values(table)[-40:] == list(range(before, before + 40))
    check_table(table)
    table.close()


def test_a_reader_is_warned_before_a_row_is_written(tmp_path: Path) -> None:
    """While rows are being written, the horizon is ahead of the commit point, and past all rows being overwritten."""
    table = Table(TableDirectory.create(tmp_path, TableConfig("table", WHOLE, capacity=100)))
    insert_all(table, rows(0, 150))
    columns = dict(rows(150, 40).columns)
    columns["check"] = TOO_WIDE
    with pytest.raises(ValueError, match="broadcast"):
        table.insert(NewRows(columns, 40), None)
    words = np.fromfile(table.directory.folder / "header.bin", "<i8")
    assert words[:2].tolist() == [190, 150]
    assert not table.overtaken(np.arange(50, 150))
    assert table.overtaken(np.array([25]))
    table.close()


def test_a_record_of_an_insert_that_was_not_committed_is_forgotten(tmp_path: Path) -> None:
    table = Table(TableDirectory.create(tmp_path, TableConfig("table", WHOLE, capacity=100)))
    table.insert(rows(0, 5), WriterStamp(WRITER, 1))
    # As if the server had died between writing the record and the commit point.
    table.directory.writers.store(WRITER, 2, 5, 7)
    folder = table.directory.folder
    table.close()
    table = Table(TableDirectory.open(folder))
    assert table.insert(rows(0, 5), WriterStamp(WRITER, 1)) == range(5)
    with pytest.raises(RequestError, match="expected 2, got 3"):
        table.insert(rows(5, 7), WriterStamp(WRITER, 3))
    assert table.insert(rows(5, 7), WriterStamp(WRITER, 2)) == range(5, 12)
    assert values(table) == list(range(12))
    table.close()
