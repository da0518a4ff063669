"""Single inserts go on while a server is away, and no row is inserted twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from replay_client import ReplayClient, Table
from replay_client._shards.keys import shard_ids
from replay_client.sync.shards import sharded_table

from tests.client.shards.conftest import COLUMNS, in_order, shards_of
from tests.client.shards.test_moving_shards import numbers_of
from tests.client.shards.test_sharded_draws import rows
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]


@pytest.fixture
def servers(start_server: Callable[..., ServerProcess], tmp_path: Path) -> list[ServerProcess]:
    """Three durable servers."""
    return in_order(start_server("--data-dir", str(tmp_path / f"data-{number}")) for number in range(3))


@pytest.fixture
def table(servers: list[ServerProcess], reach: Reach) -> Table:
    """An empty table."""
    return reach(servers).create_table("t", columns=COLUMNS, capacity=3000)


def insert(table: Table, numbers: range) -> list[int]:
    """Insert rows one by one, and return their shards."""
    return [int(shard_ids(table.insert(rows(np.array([number]))))[0]) for number in numbers]


@pytest.mark.parametrize("is_killed", [True, False])
def test_inserts_leave_out_a_server_that_is_away_or_hangs(
    servers: list[ServerProcess], table: Table, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    monkeypatch.setattr(sharded_table, "_ANSWERED_S", 0.0)
    monkeypatch.setattr(sharded_table, "_AWAY_S", (1.0, 3.0))
    assert set(insert(table, range(30))) == {0, 1, 2}
    hung = psutil.Process(servers[1].pid)
    servers[1].kill() if is_killed else hung.suspend()
    began = time.monotonic()
    assert set(insert(table, range(30, 60))) == {0, 2}
    assert time.monotonic() - began < 10  # an insert that waits for the server takes 30 s
    servers[1].restart() if is_killed else hung.resume()
    last = 60

    def is_back() -> bool:
        nonlocal last
        last += 1
        return insert(table, range(last - 1, last)) == [1]

    wait_until(is_back, "it gets rows again")
    assert numbers_of(table).tolist() == list(range(last))


def test_an_insert_that_may_have_been_applied_waits_for_its_server(
    servers: list[ServerProcess], table: Table, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharded_table, "_ANSWERED_S", 60.0)
    for shard_id in (0, 2):
        shards_of(table)[shard_id].insert(rows(np.arange(100, 200)))
    table = reach(servers).table("t")  # knows that the other shard is the emptiest
    with ThreadPoolExecutor(16) as pool:
        psutil.Process(servers[1].pid).suspend()
        begun = [pool.submit(insert, table, range(number, number + 1)) for number in range(16)]
        servers[1].kill()
        servers[1].restart()
        owners = [owner for each in begun for owner in each.result()]
    assert 1 in owners
    found = numbers_of(table)
    assert found[found < 100].tolist() == list(range(16))


def test_inserts_leave_out_a_server_that_has_lost_its_tables(
    start_server: Callable[..., ServerProcess], reach: Reach
) -> None:
    servers = in_order(start_server() for _ in range(2))
    table = reach(servers).create_table("t", columns=COLUMNS, capacity=3000)
    insert(table, range(10))
    servers[1].kill()
    servers[1].restart()
    assert set(insert(table, range(10))) == {0}
    table.loader().insert(next(iter(shards_of(table)[0].rows())))
