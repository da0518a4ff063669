"""Inserts: keys, priorities, more rows than fit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from replay_proto.v1 import replay_pb2
from replay_server.backends import BACKENDS

from tests.support.caller import CalledTable
from tests.support.rows import rows_of

NewTable = Callable[..., CalledTable]


def test_keys_count_rows_from_zero(table: CalledTable) -> None:
    assert table.insert([5, 6, 7]).tolist() == [0, 1, 2]
    assert table.insert([8]).tolist() == [3]
    assert table.read([3, 0]).values.tolist() == [8, 5]


def test_only_the_last_capacity_rows_are_live(new_table: NewTable) -> None:
    table = new_table(capacity=10)
    for first in range(0, 400, 7):
        table.insert(range(first, first + 7))
    assert table.live_keys().tolist() == list(range(396, 406))
    rows = table.read(range(-5, 500))
    assert rows.keys.tolist() == list(range(396, 406))
    assert rows.values.tolist() == list(range(396, 406))


def test_the_stream_and_the_episode_of_rows_are_kept(table: CalledTable) -> None:
    table.insert(range(2), stream=2**64 - 1, episode=3)
    table.insert(range(3), stream=5, episode=2**64 - 1)
    table.insert(range(1))
    rows = table.read(range(6))
    assert rows.streams.tolist() == [2**64 - 1] * 2 + [5] * 3 + [0]
    assert rows.episodes.tolist() == [3] * 2 + [2**64 - 1] * 3 + [0]


def test_a_table_can_be_named_without_its_uid(table: CalledTable) -> None:
    request = replay_pb2.InsertRequest(
        table=table.name, insertion=replay_pb2.Insertion(row_count=2), rows=rows_of(np.arange(2))
    )
    assert table.stub.Insert(request).table_uid == table.uid


# Rule 3: new rows get the largest live priority. `test_table_machine.py` has its oracle.


def test_new_rows_take_the_largest_priority_in_every_piece_of_a_long_request(new_table: NewTable) -> None:
    table = new_table(capacity=300)
    table.insert(range(1), [9.0])
    table.insert(range(1000))
    assert set(table.read(table.live_keys()).priorities) == {9.0}


@pytest.mark.parametrize("backend", BACKENDS)
def test_new_rows_keep_the_priority_that_came_with_them(new_table: NewTable, backend: str) -> None:
    table = new_table(backend=backend)
    given = [0.0, 5e-324, 1e-12, 0.1, 1.0, 1e300]
    table.insert(range(6), given)
    assert table.read(range(6)).priorities.tolist() == given


# Rule 6: more rows than fit.


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("capacity", [1, 64, 5000])
@pytest.mark.parametrize("more", [0, 65, 1000])
def test_of_more_rows_than_fit_all_get_keys_and_the_last_are_kept(
    new_table: NewTable, backend: str, capacity: int, more: int
) -> None:
    table = new_table(backend=backend, capacity=capacity)
    table.insert(range(3))
    count = capacity + more
    priorities = 1.0 + np.arange(count) % 17
    keys = table.insert(np.arange(count) * 3, priorities)
    assert keys.tolist() == list(range(3, 3 + count))
    rows = table.read(range(3 + count))
    assert rows.keys.tolist() == list(range(3 + more, 3 + count))
    assert rows.values.tolist() == [3 * (key - 3) for key in rows.keys]
    assert rows.priorities.tolist() == priorities[more:].tolist()
    stats = table.stats()
    assert (stats.table.size, stats.evicted) == (capacity, 3 + more)
    assert set(table.sample(200).keys) <= set(rows.keys)


def test_a_request_many_times_as_long_as_the_ring_keeps_its_last_rows(new_table: NewTable) -> None:
    table = new_table(capacity=3)
    table.insert(range(100_000))
    assert table.read(range(99_990, 100_000)).values.tolist() == [99_997, 99_998, 99_999]
    assert table.stats().table.inserted == 100_000
