"""With a server away, a reset changes nothing, and a drop drops the table on the others; both name the server."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from replay_client import ReplayClient, ServerUnavailableError, Table, TableNotFoundError

from tests.client.shards.conftest import COLUMNS, in_order, shards_of
from tests.client.shards.test_sharded_draws import rows
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]
AWAY = pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])


@pytest.fixture
def servers(start_server: Callable[..., ServerProcess], tmp_path: Path) -> list[ServerProcess]:
    """Three durable servers."""
    return in_order(start_server("--data-dir", str(tmp_path / f"data-{number}")) for number in range(3))


@pytest.fixture
def table(servers: list[ServerProcess], reach: Reach) -> Table:
    """A table with ten rows in each shard."""
    table = reach(servers, timeout_s=5.0).create_table("t", columns=COLUMNS, capacity=3000)
    for shard in shards_of(table).values():
        shard.insert(rows(np.arange(10)))
    return table


def back(server: ServerProcess, how: signal.Signals) -> None:
    if how == signal.SIGSTOP:
        os.kill(server.pid, signal.SIGCONT)
    else:
        server.restart()


@AWAY
def test_a_reset_removes_nothing(servers: list[ServerProcess], table: Table, how: signal.Signals) -> None:
    os.kill(servers[1].pid, how)
    with pytest.raises(ServerUnavailableError, match=f"shard 1 at {servers[1].address}; so no rows were removed"):
        table.reset()
    assert [shards_of(table)[number].size() for number in (0, 2)] == [10, 10]
    back(servers[1], how)
    wait_until(lambda: shards_of(table)[1].size() == 10, "it is back")
    assert table.reset() == 30
    assert len(table) == 0


@AWAY
def test_a_drop_drops_the_others(servers: list[ServerProcess], table: Table, reach: Reach, how: signal.Signals) -> None:
    os.kill(servers[1].pid, how)
    client = reach([servers[0]], timeout_s=5.0)  # opens the table without that server
    with pytest.raises(ServerUnavailableError, match=f"shard 1 at {servers[1].address}; and the table was dropped"):
        client.drop_table("t")
    with pytest.raises(ServerUnavailableError, match="shard 1"):
        table.drop()
    assert client.tables() == []
    back(servers[1], how)
    wait_until(lambda: shards_of(table)[1].size() == 10, "it is back")
    table.drop()
    assert reach(servers).tables() == []
    with pytest.raises(TableNotFoundError):
        table.drop()


def test_what_a_lost_server_had_is_not_missing(servers: list[ServerProcess], table: Table, reach: Reach) -> None:
    servers[1].kill()
    reach(servers[:1]).shards.mark(1, state="lost")
    assert table.reset() == 20
    table.drop()
