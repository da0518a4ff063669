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
def test_a_large_update_with_duplicates_agrees_with_a_dict(new_table: NewTable, backend: str) -> None:
    table = new_table(backend=backend, capacity=2000)
    table.insert(range(3000))
    random = np.random.default_rng(1)
    keys = np.append(random.integers(-500, 3500, 20_000), EXTREME_KEYS)
    priorities = random.exponential(size=len(keys))
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
