"""The directory of a table: creation, opening, corruption, removal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import DamagedTableError, TableDirectory, finished_tables
from replay_server.table.table import NewRows, Table

from tests.support.inserting import insert_all
from tests.support.rows import WHOLE, columns_of

CONFIG = TableConfig("stored", WHOLE, capacity=100, backend="rank", parameters={"alpha": 0.5}, seed=2**64 - 1)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The directory of a table with rows."""
    table = Table(TableDirectory.create(tmp_path, CONFIG))
    insert_all(table, NewRows(columns_of(np.arange(150)), 150))
    table.close()
    return tmp_path / "stored"


def test_a_directory_comes_back(stored: Path) -> None:
    directory = TableDirectory.open(stored)
    assert directory.config == CONFIG
    assert directory.header.inserted == 150
    assert len(directory.uid) == 16
    directory.close()


def test_two_tables_have_uids_of_their_own(tmp_path: Path) -> None:
    first = TableDirectory.create(tmp_path, CONFIG)
    second = TableDirectory.create(tmp_path, TableConfig("other", WHOLE, capacity=100))
    assert first.uid != second.uid
    first.close()
    second.close()


def edit(folder: Path, **changes: object) -> None:
    """Change fields of the manifest."""
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}), "utf-8")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "manifest.json that is cut": lambda folder: os.truncate(folder / "manifest.json", 10),
    "manifest.json of a later version": lambda folder: edit(folder, format_version=99),
    "manifest.json without a config": lambda folder: edit(folder, config={}),
    "manifest.json with a config that cannot be": lambda folder: edit(
        folder, config={**CONFIG.to_json(), "capacity": 0}
    ),
    "manifest.json of a backend that is not there": lambda folder: edit(
        folder, config={**CONFIG.to_json(), "backend": "heap"}
    ),
    "manifest.json with a uid that is none": lambda folder: edit(folder, uid="no hex"),
    "manifest.json with a uid that is too short": lambda folder: edit(folder, uid="00ff"),
    "manifest.json with a number for a uid": lambda folder: edit(folder, uid=7),
    "manifest.json that is a list": lambda folder: (folder / "manifest.json").write_text("[]"),
    "manifest.json that is no text": lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe"),
    "manifest.json that is missing": lambda folder: (folder / "manifest.json").unlink(),
    "column-000.bin that is shorter": lambda folder: os.truncate(folder / "column-000.bin", 100),
    "column-001.bin that is longer": lambda folder: os.truncate(folder / "column-001.bin", 1 << 20),
    "column-003.bin that is missing": lambda folder: (folder / "column-003.bin").unlink(),
    "priorities.bin that is shorter": lambda folder: os.truncate(folder / "priorities.bin", 8),
    "header.bin that is empty": lambda folder: os.truncate(folder / "header.bin", 0),
    "writers.bin that is shorter": lambda folder: os.truncate(folder / "writers.bin", 8),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_damaged_is_named_and_left_alone(stored: Path, damage: str) -> None:
    DAMAGES[damage](stored)
    before = {path.name: path.stat().st_size for path in stored.iterdir()}
    with pytest.raises(DamagedTableError, match=str(stored / damage.split()[0])):
        TableDirectory.open(stored)
    assert {path.name: path.stat().st_size for path in stored.iterdir()} == before


@pytest.mark.parametrize("name", ["inserted", "floor"])
@pytest.mark.parametrize("value", [-1, 2**62])
def test_a_header_that_cannot_be_true_is_damaged(stored: Path, name: str, value: int) -> None:
    """Negative numbers, a reset past all rows, or more rows than keys."""
    place = {"inserted": 1, "floor": 2}[name]
    words = np.fromfile(stored / "header.bin", "<i8")
    words[place] = value
    words.tofile(stored / "header.bin")
    with pytest.raises(DamagedTableError, match=str(stored / "header.bin")):
        TableDirectory.open(stored)


@pytest.mark.parametrize("version", [1, 2])
def test_a_table_of_an_earlier_version_is_refused_with_what_to_do(stored: Path, version: int) -> None:
    edit(stored, format_version=version)
    with pytest.raises(DamagedTableError, match=f"found {version}; use the version of replay-server"):
        TableDirectory.open(stored)


def test_more_deliveries_than_rows_are_damage(tmp_path: Path) -> None:
    config = TableConfig("queue", WHOLE, 100, "fifo", {"max_times_sampled": 2})
    table = Table(TableDirectory.create(tmp_path, config))
    table.insert(NewRows(columns_of(np.arange(10)), 10), None)
    table.directory.header.store("delivered", 21)
    table.close()
    with pytest.raises(DamagedTableError, match=str(tmp_path / "queue" / "header.bin")):
        TableDirectory.open(tmp_path / "queue")


def test_a_table_under_another_name_is_damaged(stored: Path) -> None:
    renamed = stored.rename(stored.with_name("renamed"))
    with pytest.raises(DamagedTableError, match="'stored'"):
        TableDirectory.open(renamed)


def test_a_directory_that_cannot_be_made_leaves_nothing(stored: Path) -> None:
    with pytest.raises(OSError, match="stored"):
        TableDirectory.create(stored.parent, CONFIG)
    assert [path.name for path in stored.parent.iterdir()] == ["stored"]


def test_half_made_and_half_removed_tables_are_swept(stored: Path) -> None:
    directory = TableDirectory.open(stored)
    hidden = directory.hide()
    assert not stored.exists()
    assert hidden.is_dir()
    directory.close()
    (stored.parent / ".new-0123").mkdir()
    kept = TableDirectory.create(stored.parent, CONFIG)
    assert list(finished_tables(stored.parent)) == [kept.folder]
    assert [path.name for path in stored.parent.iterdir()] == ["stored"]
    kept.close()


def test_reserved_bytes_are_those_of_the_files(stored: Path) -> None:
    directory = TableDirectory.open(stored)
    directory.rows.reserve(0, CONFIG.slots)
    files = sum(path.stat().st_size for path in stored.glob("*.bin") if path.name != "header.bin")
    assert directory.reserved_bytes == files
    directory.close()
