from __future__ import annotations

import pytest
from replay_client._rows import buffers
from replay_client._rows.buffers import Buffers


def test_free_memory_of_other_sizes_is_let_go_of_before_there_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_KEPT_BYTES", 1 << 20)
    pool = Buffers()
    held = pool.take(200_000)
    for size in range(300_000, 900_000, 100_000):
        pool.take(size)
    assert sum(map(len, pool._buffers)) <= 1 << 20
    assert any(each is held for each in pool._buffers)
    address = pool.take(800_000).__array_interface__["data"]
    assert pool.take(800_000).__array_interface__["data"] == address
