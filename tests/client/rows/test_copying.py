"""Rows copied by several threads are those that one would copy."""

from __future__ import annotations

import numpy as np
import pytest
from replay_client._rows import copying


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 100])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_every_row_is_copied_to_its_place(monkeypatch: pytest.MonkeyPatch, count: int, threads: int) -> None:
    copied: list[int] = []
    copy = copying._copy
    monkeypatch.setattr(copying, "_THREADS", threads)
    monkeypatch.setattr(copying, "_copy", lambda *parts: (copied.append(len(parts[1])), copy(*parts)))
    monkeypatch.setattr(copying, "_BYTES_EACH", 16)
    rng = np.random.default_rng(count)
    source = rng.integers(0, 256, (50, 8), np.uint8)
    rows = rng.integers(0, 50, count)
    into = np.zeros((count + 1, 8), np.uint8)
    copying.copy_rows(source, rows, into[:count])
    np.testing.assert_array_equal(into[:count], source[rows])
    assert not into[count].any()
    assert sum(copied) == count
