from __future__ import annotations

import gc

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_client._rows import buffers
from replay_client._rows.buffers import Buffers


def address(array: NDArray[np.uint8]) -> int:
    where: int = array.__array_interface__["data"][0]
    return where


def test_memory_comes_back_when_the_last_view_of_it_is_gone() -> None:
    pool = Buffers()
    lent = pool.lend(5_000)
    assert (len(lent), lent.dtype, lent.flags.writeable) == (8_192, np.dtype("u1"), True)
    where, view = address(lent), lent[100:4_100].view("<f4")[::2]
    del lent
    assert address(pool.lend(5_000)) != where, "a view of it lives"
    view[:] = 1.0
    del view
    assert address(pool.lend(8_192)) == where


def test_the_buffer_that_came_back_last_is_lent_first() -> None:
    pool = Buffers()
    first, second = pool.lend(1), pool.lend(1)
    where = address(second)
    del first, second
    assert address(pool.lend(1)) == where, "it is the one that caches still have"


def test_the_oldest_free_buffers_go_where_there_would_be_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_KEPT_BYTES", 1 << 20)
    pool = Buffers()
    held = pool.lend(200_000)
    for size in range(300_000, 900_000, 100_000):
        pool.lend(size)
    assert [memory.size // 100_000 for memory in pool._free] == [8]
    held[:] = 1
    last = pool.lend(800_000)
    assert not pool._free
    del held
    assert [memory.size // 100_000 for memory in pool._free] == [2]
    last[:] = 2


def test_an_array_that_dies_while_the_pool_is_at_work_blocks_nobody() -> None:
    """Garbage collection may free an array at any moment, even in a thread that has acquired the pool's lock."""
    pool = Buffers()
    cycle: list[object] = [pool.lend(1)]
    cycle.append(cycle)
    del cycle
    with pool._lock:
        gc.collect()
    assert not pool._free
    pool.lend(1)
    assert len(pool._free) == 1
