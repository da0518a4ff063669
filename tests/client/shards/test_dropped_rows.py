"""A shard that was left out of a drop comes back: its rows are neither drawn nor part of another table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_client import InvalidArgumentError, ReplayClient, Table, TableNotFoundError
from replay_client._operations import server as operations
from replay_client.results.description import TableDescription
from replay_client.sync.shards.servers.asking import AWAY

from tests.client.shards.conftest import COLUMNS, in_order, shards_of
from tests.client.shards.test_sharded_draws import rows
from tests.client.shards.test_wrong_servers import tables_of
from tests.client.test_cli import run
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]


@pytest.fixture
def servers(start_server: Callable[..., ServerProcess], tmp_path: Path) -> list[ServerProcess]:
    """Three durable servers."""
    return in_order(start_server("--data-dir", str(tmp_path / f"data-{number}")) for number in range(3))


def make(client: ReplayClient, **config: Any) -> Table:
    return client.create_table("t", columns=COLUMNS, capacity=3000, **config)


def fill(table: Table) -> None:
    for shard in shards_of(table).values():
        shard.insert(rows(np.arange(50)))


def store(server: ServerProcess, like: TableDescription, *, version: int = 1, **whole: Any) -> TableDescription:
    """Create a shard like another one on one server, with these parts of its config."""
    config = like.to_config()
    config.MergeFrom(type(config)(**whole))
    with ReplayClient(server.address) as client:
        create = operations.create_table(config, "open", shards_version=version)
        return client._session.connection.run(create)[0]


def drop_without(away: ServerProcess, client: ReplayClient) -> None:
    """Drop the table while a server is away, and start that server again."""
    away.kill()
    table = client.table("t")  # without that server
    for drop in (table.drop, lambda: client.drop_table("t")):
        with pytest.raises(AWAY):
            drop()
    away.restart()


@pytest.mark.parametrize("away", [0, 2])
def test_rows_of_a_table_that_was_dropped_elsewhere_do_not_come_back(
    servers: list[ServerProcess], reach: Reach, away: int
) -> None:
    client = reach(servers, timeout_s=1.0)
    table = make(client)
    fill(table)
    servers[away].kill()
    with pytest.raises(AWAY):
        table.drop()
    with pytest.raises(AWAY):
        make(client)
    servers[away].restart()
    fresh = reach(servers)
    dropped = ", ".join(f"shard {number} at {servers[number].address}" for number in range(3) if number != away)
    openings: list[Callable[[], object]] = [lambda: make(fresh, if_exists="reset"), lambda: fresh.table("t")]
    for refuse in openings:
        with pytest.raises(InvalidArgumentError, match=f"{dropped} .* got shard {away} at {servers[away].address}"):
            refuse()
    assert [tables_of(server) for number, server in enumerate(servers) if number != away] == [[], []]
    assert run("drop", "t", "--yes", "-s", servers[1].address).returncode == 0
    assert len(make(fresh)) == 0


def test_a_shard_of_a_dropped_table_is_no_part_of_a_newer_one(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers, timeout_s=1.0)
    table = make(client)
    fill(table)
    like = shards_of(table)[0].describe()
    drop_without(servers[2], client)
    first = store(servers[0], like, whole_shards=[0, 1, 2])
    store(servers[1], like, whole_shards=[0, 1, 2], whole_uid=first.uid)
    fresh = reach(servers)
    newer = f"shard 0 at {servers[0].address}, shard 1 at {servers[1].address} of table {first.uid.hex()}"
    older = f"shard 2 at {servers[2].address} of table {table.uid.hex()}"
    openings: list[Callable[[], object]] = [lambda: make(fresh), lambda: fresh.table("t")]
    for refuse in openings:
        with pytest.raises(InvalidArgumentError, match=f"{newer}; {older}.*"):
            refuse()
    fresh.drop_table("t")
    with pytest.raises(TableNotFoundError):
        fresh.drop_table("t")


def test_a_table_that_was_not_created_everywhere_is_completed(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers)
    table = make(client)
    shards_of(table)[1].drop()
    assert len(shards_of(make(client))) == 3
    fill(client.table("t"))


def test_a_table_whose_first_shard_was_lost_gets_a_new_one(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers[:2])
    fill(make(client))
    client.shards.mark(0, state="lost")
    client.shards.set([server.address for server in servers[1:]])
    for table in (make(client), client.table("t"), reach(servers[2:]).table("t")):
        assert {number: shard.size() for number, shard in shards_of(table).items()} == {1: 50, 2: 0}


def test_a_table_of_one_server_is_marked_when_it_gets_more_shards(servers: list[ServerProcess], reach: Reach) -> None:
    with ReplayClient(servers[1].address) as alone:
        uid = alone.create_table("t", columns=COLUMNS, capacity=3000).uid
    client = reach(servers, timeout_s=1.0)
    fill(client.table("t"))
    marks = [shard.describe() for shard in shards_of(client.table("t")).values()]
    assert [(each.whole_uid, each.whole_shards) for each in marks] == [(uid, (1,)), (b"", ()), (uid, (1,))]
    drop_without(servers[2], client)
    with pytest.raises(InvalidArgumentError, match=f"shard 1 at {servers[1].address} and shard 2"):
        reach(servers).table("t")


def test_tables_without_the_uid_of_the_whole_are_opened(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers[:2])
    table = make(client)
    like = shards_of(table)[0].describe()
    table.drop()
    for server in servers[:2]:
        assert store(server, like).whole_shards == ()
    fill(make(client))
    client.shards.set([server.address for server in servers])
    for table in (make(client), client.table("t"), reach(servers[2:]).table("t")):
        assert {number: shard.size() for number, shard in shards_of(table).items()} == {0: 50, 1: 50, 2: 0}
