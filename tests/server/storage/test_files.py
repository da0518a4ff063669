"""Mapped files and the header."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from replay_server.files.mapped_file import RESERVE_STEP_BYTES, MappedFile, NoSpaceError
from replay_server.storage.header import FIRST_STATE_WORD, Header
from replay_server.storage.ranges import RESETTING
from replay_server.storage.table_state import STATE_FIELDS, STATE_WORDS, TableState

CAPACITY = 100


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    file = MappedFile(tmp_path / "file", 1000, create=True)
    file.reserve(1000)
    file.bytes[:] = np.arange(1000, dtype=np.uint8)
    file.close()
    again = MappedFile(tmp_path / "file", 1000, create=False)
    assert np.array_equal(again.bytes, np.arange(1000, dtype=np.uint8))
    again.close()


def test_a_view_shares_the_content(tmp_path: Path) -> None:
    file = MappedFile(tmp_path / "file", 96, create=True)
    file.reserve(96)
    view = file.view(np.dtype("<i4"), (4, 6))
    view[3, 5] = -1
    assert file.bytes[-4:].tolist() == [255] * 4
    del view
    file.close()


def test_a_file_of_another_size_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(99))
    with pytest.raises(ValueError, match="expected 100 bytes, found 99"):
        MappedFile(tmp_path / "file", 100, create=False)


def test_a_file_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        MappedFile(tmp_path / "file", 100, create=True)
    assert (tmp_path / "file").read_bytes() == b"precious"


def test_a_file_that_is_not_there_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        MappedFile(tmp_path / "file", 100, create=False)


def test_space_is_taken_as_it_is_reserved(tmp_path: Path) -> None:
    path, size = tmp_path / "file", 3 * RESERVE_STEP_BYTES
    file = MappedFile(path, size, create=True)
    assert (path.stat().st_size, path.stat().st_blocks) == (size, 0)
    file.reserve(1)
    assert file.reserved == RESERVE_STEP_BYTES
    assert path.stat().st_blocks * 512 >= RESERVE_STEP_BYTES
    file.reserve(RESERVE_STEP_BYTES)
    assert file.reserved == RESERVE_STEP_BYTES
    file.reserve(size)
    assert file.reserved == size
    file.close()


@pytest.mark.parametrize("size", [2**60, 2**63 - 1, 2**63, 2**80])
def test_a_size_that_no_machine_can_map_is_no_space(tmp_path: Path, size: int) -> None:
    with pytest.raises(NoSpaceError):
        MappedFile(tmp_path / "file", size, create=True)


def test_files_that_are_closed_give_their_descriptors_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        MappedFile(tmp_path / str(number), 100, create=True).close()
    files = [MappedFile(tmp_path / str(number), 100, create=False) for number in range(50)]
    del files
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_view_outlives_the_closing_of_its_file(tmp_path: Path) -> None:
    """A dropped table may still be read."""
    file = MappedFile(tmp_path / "file", 100, create=True)
    file.reserve(100)
    view = file.view(np.dtype("u1"), (100,))
    view[:] = 7
    file.close()
    (tmp_path / "file").unlink()
    assert view.tolist() == [7] * 100


def test_a_header_comes_back(tmp_path: Path) -> None:
    header = Header(tmp_path, most_live=CAPACITY, times=0, numbers_per_row=0, create=True)
    assert (header.state, header.write_horizon) == (TableState(), 0)
    state = TableState(inserted=2**47 + 5, floor=2**47, counted_from=2**46, sampled=2**47 + 7)
    header.set(state)
    header.close()
    again = Header(tmp_path, most_live=CAPACITY, times=0, numbers_per_row=0, create=False)
    assert (again.state, again.write_horizon) == (state, 2**47 + 5)
    again.close()


@pytest.mark.parametrize("stored", range(STATE_WORDS))
def test_a_reset_that_a_kill_cut_short_is_finished(tmp_path: Path, stored: int) -> None:
    """Otherwise, a limiter would owe samples of removed rows, or count rows without their draws."""
    before = TableState(inserted=500, floor=20, counted_from=10, sampled=3920)
    after = TableState(inserted=500, floor=500, counted_from=500)
    header = Header(tmp_path, most_live=CAPACITY, times=0, numbers_per_row=0, create=True)
    header.set(before)
    header.close()
    words = np.memmap(tmp_path / "header.bin", "<i8", "r+")
    state = words[FIRST_STATE_WORD : FIRST_STATE_WORD + STATE_WORDS]
    state[STATE_FIELDS.index("sampled")] = RESETTING
    state[:stored] = after[:stored]
    words.flush()
    again = Header(tmp_path, most_live=CAPACITY, times=0, numbers_per_row=0, create=False)
    assert again.state == after
    again.close()
    assert state.tolist() == list(after)


def test_a_horizon_ahead_of_the_commit_point_is_taken_back(tmp_path: Path) -> None:
    """The server died during an insert, so no write is in progress any more."""
    header = Header(tmp_path, most_live=CAPACITY, times=0, numbers_per_row=0, create=True)
    header.store("inserted", 10)
    header.write_horizon = 17
    header.close()
    again = Header(tmp_path, most_live=CAPACITY, times=0, numbers_per_row=0, create=False)
    assert (again.inserted, again.write_horizon) == (10, 10)
    again.close()
    words = np.fromfile(tmp_path / "header.bin", "<i8")
    assert words.tolist()[:3] == [10, 10, 0]
