"""Servers that do not belong together are refused by name, before anything is stored on any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_client import (
    Column,
    InvalidArgumentError,
    ReplayClient,
    ServerUnavailableError,
    ShardMap,
    ShardsChangedError,
    TableExistsError,
    aio,
)
from replay_client._operations import server as operations
from replay_client.sync.shards.sharded_table import ShardedTable

from tests.client.shards.conftest import COLUMNS, in_order, shards_of
from tests.client.shards.test_sharded_draws import rows
from tests.client.shards.test_sharded_tables import make
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]


def is_untouched(server: ServerProcess) -> bool:
    """Whether a server has neither a shard map nor tables."""
    with ReplayClient(server.address) as client:
        return client.shards.map() is None and client.tables() == []


def tables_of(server: ServerProcess) -> list[str]:
    """Names of the tables that a server has itself."""
    with ReplayClient(server.address) as client:
        return [table.name for table in client._session.connection.run(operations.list_tables())[0]]


def test_two_addresses_of_one_server_are_refused(servers: list[ServerProcess]) -> None:
    address = servers[0].address
    again = address.replace("127.0.0.1", "localhost")
    with ReplayClient(f"{address},{again},{servers[1].address}") as client:
        for change in (lambda: make(client), lambda: client.shards.set([address, again])):
            with pytest.raises(InvalidArgumentError, match=f"{address} and {again}, which are one server"):
                change()
    assert is_untouched(servers[0])
    assert is_untouched(servers[1])


def test_no_addresses_and_unknown_states_are_refused(servers: list[ServerProcess]) -> None:
    address = servers[0].address
    with ReplayClient(address) as client:
        for addresses in ([], address, None, [address, address]):
            with pytest.raises(InvalidArgumentError, match=r"^addresses: expected a list of different addresses"):
                client.shards.set(addresses)  # type: ignore[arg-type]
        assert is_untouched(servers[0])
        before = client.shards.set([each.address for each in servers[:2]])
        unknown: list[Any] = ["x", None, []]
        for state in unknown:
            with pytest.raises(InvalidArgumentError, match=r"^state: expected 'active', 'draining', 'lost', 'retired'"):
                client.shards.mark(0, state=state)
        assert client.shards.map() == before


def test_servers_of_different_versions_are_refused(
    start_server: Callable[..., ServerProcess], tmp_path: Path, reach: Reach
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as metadata\n"
        "real = metadata.version\n"
        "metadata.version = lambda name: '7.8.9' if name == 'replay-service' else real(name)\n",
        "utf-8",
    )
    servers = [start_server(), start_server(environment={"PYTHONPATH": str(tmp_path)}, forked=False)]
    with pytest.raises(InvalidArgumentError, match=rf"one version.*{servers[1].address}: 7\.8\.9"):
        make(reach(servers))
    assert all(is_untouched(server) for server in servers)


def test_different_tables_of_a_name_are_refused(servers: list[ServerProcess], reach: Reach) -> None:
    for server, columns in zip(servers[:2], (COLUMNS, {"other": Column("int64")}), strict=True):
        with ReplayClient(server.address) as alone:
            alone.create_table("t", columns=columns, capacity=100)
    client = reach(servers)
    client.shards.set([server.address for server in servers])
    with pytest.raises(InvalidArgumentError, match=f"another one in shard 1 at {servers[1].address}") as refused:
        client.table("t")
    assert servers[0].address in str(refused.value)
    assert tables_of(servers[2]) == []


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("schema", {"columns": {"other": Column("int64")}}),
    ("parameters", {"alpha": 0.9}),
    ("capacity", {"capacity": 50}),
]
"""What differs, and the config of a table that differs in it."""


@pytest.mark.parametrize(("field", "other"), OTHERS)
def test_a_table_is_created_nowhere_if_a_server_has_another_of_its_name(
    servers: list[ServerProcess], reach: Reach, field: str, other: dict[str, Any]
) -> None:
    with ReplayClient(servers[2].address) as alone:
        alone.create_table("t", **{"columns": COLUMNS, "capacity": 100, **other})
    client = reach(servers)
    with pytest.raises(TableExistsError, match=f"shard 2 at {servers[2].address}: table 't' .* another config"):
        make(client, capacity=300)
    assert [tables_of(server) for server in servers] == [[], [], ["t"]]
    with ReplayClient(servers[1].address) as alone:  # as if both had been there before the servers were joined
        config = operations.table_config(
            "t",
            columns=COLUMNS,
            capacity=100,
            backend="sum_tree",
            steps=None,
            seed=None,
            min_size=None,
            samples_per_insert=None,
            error_buffer=None,
        )
        alone._session.connection.run(operations.create_table(config, "open", shards_version=1))
    where = f"shard 2 at {servers[2].address} than in shard 1 at {servers[1].address}"
    openings: list[Callable[[], object]] = [lambda: make(client, capacity=300), lambda: client.table("t")]
    for refuse in openings:
        with pytest.raises(InvalidArgumentError, match=rf"^{field}.*{where}"):
            refuse()
    assert [tables_of(server) for server in servers] == [[], ["t"], ["t"]]


def test_a_table_is_created_nowhere_if_a_server_is_away(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers, timeout_s=1.0)
    client.shards.set([server.address for server in servers])
    servers[2].kill()
    with pytest.raises(ServerUnavailableError, match=f"shard 2 at {servers[2].address}"):
        make(client)
    assert [tables_of(server) for server in servers[:2]] == [[], []]


def test_servers_of_two_services_are_refused(start_server: Callable[..., ServerProcess], reach: Reach) -> None:
    servers = in_order(start_server() for _ in range(4))
    for pair in (servers[:2], servers[2:]):
        make(reach(pair))
    mixed = reach(servers[1:3])
    for change in (lambda: make(mixed), lambda: mixed.shards.set([server.address for server in servers])):
        with pytest.raises(InvalidArgumentError, match=f"{servers[1].address}, {servers[2].address}.*several"):
            change()


def test_an_older_map_and_ids_that_were_used_are_refused(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers)
    make(client)
    fleet = client._fleet
    before = fleet.find()
    client.shards.mark(2, state="draining")
    client.shards.mark(2, state="retired")
    with pytest.raises(ShardsChangedError, match=rf"{servers[0].address} has version 3 already, and the new one 1"):
        fleet.change(before)
    with pytest.raises(InvalidArgumentError, match=f"0 at {servers[0].address}, 1 at {servers[1].address}, got 2"):
        client.shards.mark(2, state="active")
    for shards in (before.shards, before.shards[:2]):
        again = fleet.find().with_shards(shards)
        with pytest.raises(InvalidArgumentError, match=f"shard 2 at {servers[2].address}, retired"):
            fleet.change(again)
    assert [server.version for server in (fleet.find(),)] == [3]
    added = client.shards.set([server.address for server in servers])
    assert [(shard.id, shard.state) for shard in added.shards[2:]] == [(2, "retired"), (3, "active")]


def test_a_server_that_was_given_up_returns_only_without_its_rows(
    start_server: Callable[..., ServerProcess], tmp_path: Path, reach: Reach
) -> None:
    servers = in_order(start_server("--data-dir", str(tmp_path / f"data-{number}")) for number in range(3))
    addresses = [server.address for server in servers]
    table = make(reach(servers))
    for shard in shards_of(table).values():
        shard.insert(rows(np.arange(10)))
    client = reach(servers[:1])
    servers[1].kill()
    client.shards.mark(1, state="lost")
    servers[1].restart()
    before = client.shards.map()
    with pytest.raises(
        InvalidArgumentError, match=f"an empty --data-dir, got {addresses[1]} with 10 rows of table 't'"
    ):
        client.shards.set(addresses)
    assert client.shards.map() == before
    assert len(client.table("t")) == 20
    servers[1].kill()
    servers[1].flags = (*servers[1].flags, "--data-dir", str(tmp_path / "new"))
    servers[1].restart()
    assert client.shards.set(addresses).in_use[-1].id == 3
    assert len(client.table("t")) == 20


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_shard_does_not_move_to_a_server_that_was_given_up(
    start_server: Callable[..., ServerProcess], tmp_path: Path, reach: Reach, is_elsewhere: bool
) -> None:
    """A server does not know its shard: only its last address, or the first shard of a table, tells."""
    servers = in_order(start_server("--data-dir", str(tmp_path / f"data-{number}")) for number in range(3))
    make(reach(servers)).insert(rows(np.arange(30)))
    lost = 0 if is_elsewhere else 1
    servers[lost].kill()
    client = reach(servers[2:])
    client.shards.mark(lost, state="lost")
    returned = start_server("--data-dir", servers[lost].flags[-1]) if is_elsewhere else servers[lost]
    if not is_elsewhere:
        returned.restart()
    before = client.shards.map()
    with pytest.raises(InvalidArgumentError, match=f"{returned.address}, which is the server of shard {lost}"):
        client.shards.move(2, address=returned.address)
    assert client.shards.map() == before


def test_asyncio_refuses_shards_rather_than_show_a_part(servers: list[ServerProcess], reach: Reach) -> None:
    make(reach(servers)).insert(rows(np.arange(30)))
    everywhere = ", ".join(server.address for server in servers)
    with pytest.raises(InvalidArgumentError, match="one server"):
        aio.ReplayClient(everywhere.replace(" ", ""))

    async def refuses() -> None:
        async with aio.ReplayClient(servers[1].address) as client:
            for call in (
                client.table("t"),
                client.create_table("u", columns=COLUMNS, capacity=10),
                client.drop_table("t"),
                client.tables(),
                client.stats(),
                client.checkpoint(),
            ):
                with pytest.raises(InvalidArgumentError, match=f"use replay_client.ReplayClient, got .*{everywhere}"):
                    await call

    asyncio.run(refuses())
    assert len(reach(servers).table("t")) == 30


def test_a_draining_server_is_retired_when_its_rows_are_the_oldest(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers[:2])
    table = make(client, capacity=512)
    for shard_id in (1, 0):  # the rows of shard 0 are newer
        shards_of(table)[shard_id].insert(rows(np.arange(256)))
    with pytest.raises(InvalidArgumentError, match="draining"):
        client.shards.retire(0)
    client.shards.mark(0, state="draining")
    with pytest.raises(InvalidArgumentError, match=f"256 rows of table 't' on {servers[0].address}"):
        client.shards.retire(0)
    other = shards_of(table)[1]
    for _ in range(4):
        other.insert(rows(np.arange(64)))
    shards = client.shards.retire(0)
    assert [shard.state for shard in shards.shards] == ["retired", "active"]
    batch = client.table("t").sample(64, beta=0.4)
    assert set((batch.row_keys >> 48).tolist()) == {1}


def test_two_maps_of_one_version_are_a_clash_that_is_named(servers: list[ServerProcess]) -> None:
    """Two people who reach only one server each can both change the map."""
    one, other = servers[0].address, servers[1].address
    with ReplayClient(f"{one},{other}") as client:
        make(client)
        shards = client.shards.map()
        assert shards is not None
        for address, lost in ((one, 1), (other, 0)):
            changed = shards.with_shards(
                tuple(replace(each, state="lost") if each.id == lost else each for each in shards.shards)
            )
            with ReplayClient(address) as alone:
                alone._session.connection.run(operations.set_shards(changed, 1))
    with ReplayClient(f"{one},{other}") as client:
        clash = rf"one shard map.*version 2 of.*{one}.*{other}"
        for use in (client.tables, client.stats, client.shards.map, lambda: client.shards.mark(1, state="draining")):
            with pytest.raises(InvalidArgumentError, match=clash):
                use()


def test_a_change_that_meets_another_of_its_version_is_refused(servers: list[ServerProcess]) -> None:
    one, other = sorted((servers[0].address, servers[1].address))
    with ReplayClient(f"{one},{other}") as client:
        make(client)
        shards = client.shards.map()
        assert shards is not None
        first = shards.with_shards((replace(shards.shards[0], state="draining"), shards.shards[1]))
        second = shards.with_shards((shards.shards[0], replace(shards.shards[1], state="draining")))
        with ReplayClient(other) as alone:
            alone._session.connection.run(operations.set_shards(first, 1))
        with pytest.raises(InvalidArgumentError, match=rf"the change with version 2.*{other} with version 2"):
            client._fleet.change(second)


def test_two_changes_do_not_win_over_the_one_of_someone_else(servers: list[ServerProcess]) -> None:
    one, other = servers[0].address, servers[1].address
    with ReplayClient(f"{one},{other}") as client:
        make(client)
        shards = client.shards.map()
        assert shards is not None
        first, second = shards.shards
        twice = shards.with_shards((first, replace(second, state="draining")))
        twice = twice.with_shards((first, replace(second, state="lost")))
        once = shards.with_shards((replace(first, state="draining"), second))
        _send(one, twice, expected=1)
        _send(other, once, expected=1)
        clash = r"one shard map.*version 3 of .*version 2 of "
        with pytest.raises(InvalidArgumentError, match=clash) as refused:
            client.tables()
        assert one in str(refused.value)
        assert other in str(refused.value)
        with pytest.raises(InvalidArgumentError, match=rf"the change with version 3 .*, and {other} with version 2 "):
            client._fleet._send(twice, other, is_first=False)
        with pytest.raises(InvalidArgumentError, match=rf"^map.ancestors: .* 2 \({once.id.hex()}\).*{twice.id.hex()}"):
            _send(other, twice, expected=2)
        with ReplayClient(other) as alone:
            assert alone._session.connection.run(operations.get_shards(timeout_s=5.0)).map == once


def test_a_client_does_not_follow_a_map_without_a_change_that_it_knows(servers: list[ServerProcess]) -> None:
    one, other = servers[0].address, servers[1].address
    with ReplayClient(f"{one},{other}") as client:
        table = make(client)
        shards = client.shards.map()
        assert shards is not None
        first, second = shards.shards
        assert isinstance(table, ShardedTable)
        roster = table._roster
        known = shards.with_shards((first, replace(second, state="draining")))
        roster._map = known
        unknown = shards.with_shards((replace(first, state="draining"), second)).with_shards(shards.shards)
        for address in (one, other):
            _send(address, unknown, expected=1)
        with pytest.raises(InvalidArgumentError, match=r"this client with version 2 .* a server with version 3 "):
            roster._renew()
        assert roster._map == known


def _send(address: str, shards: ShardMap, *, expected: int) -> None:
    """Give one server a map, as someone would who does not reach the others."""
    with ReplayClient(address) as alone:
        alone._session.connection.run(operations.set_shards(shards, expected))
