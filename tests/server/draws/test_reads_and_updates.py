"""Reads of rows by key, and updates of their priorities."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from replay_proto.schema import Column
from replay_server.backends import BACKENDS
from replay_server.rpc.handlers import fields

from tests.support.caller import CalledTable, wire_only

ALL_DATA_PATHS = True

NewTable = Callable[..., CalledTable]
EXTREME_KEYS = [-1, -(2**63), 2**63 - 1, 1 << 48]


def test_rows_are_read_in_the_order_asked_for_and_as_often(table: CalledTable) -> None:
    table.insert(range(50, 60), np.arange(10) + 0.5)
    rows = table.read([7, 0, 7, 9, 0])
    assert rows.keys.tolist() == [7, 0, 7, 9, 0]
    assert rows.values.tolist() == [57, 50, 57, 59, 50]
    assert rows.priorities.tolist() == [7.5, 0.5, 7.5, 9.5, 0.5]


def test_only_live_rows_are_read(new_table: NewTable) -> None:
    table = new_table(capacity=10)
    table.insert(range(25))
    rows = table.read([14, 15, 24, 25, 0, *EXTREME_KEYS, 20])
    assert rows.keys.tolist() == [15, 24, 20]
    assert rows.values.tolist() == [15, 24, 20]


def test_a_read_of_nothing_returns_nothing(table: CalledTable) -> None:
    assert len(table.read([]).keys) == 0
    table.insert(range(3))
    assert table.read([]).rows == b""


def test_a_large_read_is_whole(new_table: NewTable) -> None:
    """Nearly the maximum number of rows per call."""
    table = new_table(capacity=100_000)
    table.insert(np.arange(100_000))
    keys = np.random.default_rng(0).permutation(100_000)[:30_000]
    rows = table.read(keys)
    assert np.array_equal(rows.keys, keys)
    assert np.array_equal(rows.values, keys)


@wire_only
@pytest.mark.parametrize("backend", BACKENDS)
class TestUpdates:
    def test_set_priorities(self, new_table: NewTable, backend: str) -> None:
        table = new_table(backend=backend)
        table.insert(range(5))
        result = table.update([4, 1], [0.0, 2.5])
        assert (result.updated, result.stale) == (2, 0)
        assert table.read(range(5)).priorities.tolist() == [1.0, 2.5, 1.0, 1.0, 0.0]

    def test_of_one_key_the_last_priority_wins(self, new_table: NewTable, backend: str) -> None:
        table = new_table(backend=backend)
        table.insert(range(5))
        result = table.update([2, 3, 2, 3, 2], [1.0, 2.0, 3.0, 4.0, 5.0])
        assert (result.updated, result.stale) == (2, 0)
        assert table.read(range(5)).priorities.tolist() == [1.0, 1.0, 5.0, 4.0, 1.0]

    def test_a_stale_key_is_counted_and_ignored(self, new_table: NewTable, backend: str) -> None:
        table = new_table(backend=backend, capacity=10)
        table.insert(range(25))
        too_old, never_issued = [0, 14], [25, 1000]
        before = table.read(range(25)).priorities.tolist()
        result = table.update([*too_old, *never_issued, *EXTREME_KEYS], np.full(8, 7.0))
        assert (result.updated, result.stale) == (0, 8)
        assert table.read(range(25)).priorities.tolist() == before

    def test_a_stale_key_is_counted_each_time_it_is_named(self, new_table: NewTable, backend: str) -> None:
        table = new_table(backend=backend, capacity=10)
        table.insert(range(25))
        result = table.update([3, 3, 20, 3, 20], [1.0, 2.0, 3.0, 4.0, 5.0])
        assert (result.updated, result.stale) == (1, 3)
        assert table.read([20]).priorities.tolist() == [5.0]

    def test_a_stale_key_never_reaches_the_row_that_has_its_slot_now(self, new_table: NewTable, backend: str) -> None:
        table = new_table(backend=backend, capacity=10)
        slots = table.describe().slots
        table.insert(range(slots + 10))
        aliases = table.live_keys() - slots
        result = table.update([*aliases, *(aliases + 2 * slots)], np.full(20, 9.0))
        assert (result.updated, result.stale) == (0, 20)
        assert set(table.read(table.live_keys()).priorities) == {1.0}

    def test_an_update_of_an_empty_table_is_stale(self, new_table: NewTable, backend: str) -> None:
        table = new_table(backend=backend)
        result = table.update([0, 1], [1.0, 1.0])
        assert (result.updated, result.stale) == (0, 2)

    def test_an_update_without_keys_changes_nothing(self, new_table: NewTable, backend: str) -> None:
        table = new_table(backend=backend)
        table.insert(range(3))
        result = table.update([], [])
        assert (result.updated, result.stale) == (0, 0)

    def test_a_large_update_with_duplicates_agrees_with_a_dict(self, new_table: NewTable, backend: str) -> None:
        table = new_table(backend=backend, capacity=2000)
        table.insert(range(3000))
        random = np.random.default_rng(1)
        keys = random.integers(-500, 3500, 20_000)
        priorities = random.exponential(size=20_000)
        live = dict.fromkeys(range(1000, 3000), 1.0)
        wanted = {int(key): float(p) for key, p in zip(keys, priorities, strict=True) if key in live}
        result = table.update(keys, priorities)
        assert result.updated == len(wanted)
        assert result.stale == sum(1 for key in keys if key not in live)
        assert table.read(range(1000, 3000)).priorities.tolist() == list({**live, **wanted}.values())


def test_no_rows_have_valid_columns_of_every_type() -> None:
    schema = {"number": Column("int64"), "flag": Column("bool", (2,))}
    found = fields.columns(schema, memoryview(b""), 0)
    assert [values.shape for values in found.values()] == [(0,), (0, 2)]
