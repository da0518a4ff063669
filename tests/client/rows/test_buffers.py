from __future__ import annotations

import sys

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


def kept(pool: Buffers) -> list[int]:
    """The sizes of the free buffers, in units of 100,000 bytes, once the pool has noticed which ones are free."""
    pool._take_back()
    return [memory.size // 100_000 for memory in pool._free]


def test_the_oldest_free_buffers_go_where_there_would_be_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_KEPT_BYTES", 1 << 20)
    pool = Buffers()
    held = pool.lend(200_000)
    for size in range(300_000, 900_000, 100_000):
        pool.lend(size)
    assert kept(pool) == [8]
    held[:] = 1
    last = pool.lend(800_000)
    assert kept(pool) == []
    del held
    assert kept(pool) == [2]
    last[:] = 2


def test_of_many_buffers_that_come_back_at_once_few_are_kept() -> None:
    pool = Buffers()
    held = [pool.lend(1) for _ in range(100)]
    held.clear()
    assert len(kept(pool)) == buffers._KEPT


def test_an_array_that_dies_while_the_pool_is_at_work_blocks_nobody() -> None:
    """Garbage collection may free an array at any moment, even in a thread that has acquired the pool's lock."""
    pool = Buffers()
    lent = pool.lend(1)
    with pool._lock:
        del lent
    assert len(kept(pool)) == 1


def test_an_array_dies_without_python_code_in_which_an_interrupt_would_be_lost() -> None:
    called: list[str] = []
    lent = Buffers().lend(1)
    sys.setprofile(lambda frame, event, arg: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        del lent
    finally:
        sys.setprofile(None)
    assert called == []
