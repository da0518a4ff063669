"""Rows copied by several threads are those that one would copy."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_client._rows import copying

Bytes = NDArray[np.uint8]
Rows = NDArray[np.int64]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 100])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_every_row_is_copied_to_its_place(monkeypatch: pytest.MonkeyPatch, count: int, threads: int) -> None:
    copied: list[int] = []
    copy = copying._copy

    def counted(source: Bytes, part: Rows, place: Bytes) -> None:
        copied.append(len(part))
        copy(source, part, place)

    monkeypatch.setattr(copying, "_THREADS", threads)
    monkeypatch.setattr(copying, "_copy", counted)
    monkeypatch.setattr(copying, "_BYTES_EACH", 16)
    rng = np.random.default_rng(count)
    source = rng.integers(0, 256, (50, 8), np.uint8)
    rows = rng.integers(0, 50, count)
    into = np.zeros((count + 1, 8), np.uint8)
    copying.copy_rows(source, rows, into[:count])
    np.testing.assert_array_equal(into[:count], source[rows])
    assert not into[count].any()
    assert sum(copied) == count


def test_rows_that_a_thread_could_not_copy_are_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = copying._copy

    def fails_in_threads(source: Bytes, part: Rows, place: Bytes) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError
        copy(source, part, place)

    monkeypatch.setattr(copying, "_THREADS", 2)
    monkeypatch.setattr(copying, "_copy", fails_in_threads)
    monkeypatch.setattr(copying, "_BYTES_EACH", 16)
    with pytest.raises(MemoryError):
        copying.copy_rows(np.zeros((8, 8), np.uint8), np.arange(8), np.zeros((8, 8), np.uint8))
