"""Tables that need the one server on which they were created are refused by name, before anything is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from replay_client import InvalidArgumentError, ReplayClient
from replay_client._operations import server as operations

from tests.client.shards.conftest import COLUMNS
from tests.client.shards.test_wrong_servers import is_untouched, tables_of
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("backend", {"backend": "fifo"}),
    ("backend", {"backend": "rank"}),
    ("rate_limiter", {"min_size": 5, "samples_per_insert": 1.0, "error_buffer": 20.0}),
]


@pytest.mark.parametrize(("field", "config"), KINDS)
def test_a_table_of_one_server_gets_no_shards_on_others(
    servers: list[ServerProcess], reach: Reach, field: str, config: dict[str, Any]
) -> None:
    with ReplayClient(servers[0].address) as alone:
        alone.create_table("t", columns=COLUMNS, capacity=100, **config)
        addresses = [server.address for server in servers]
        client = reach(servers)
        changes: list[Callable[[], object]] = [
            lambda: client.table("t"),
            lambda: client.shards.set(addresses),
            lambda: alone.shards.set(addresses),
        ]
        for change in changes:
            with pytest.raises(InvalidArgumentError, match=f"^{field}: .* table 't'.* on {servers[0].address}"):
                change()
        assert alone.shards.map() is None
    assert is_untouched(servers[1])
    assert is_untouched(servers[2])


@pytest.mark.parametrize(("field", "config"), KINDS)
def test_such_a_table_is_refused_if_there_are_several_servers_already(
    servers: list[ServerProcess], reach: Reach, field: str, config: dict[str, Any]
) -> None:
    client = reach(servers[:2])
    with ReplayClient(servers[0].address) as alone:
        description = alone.create_table("t", columns=COLUMNS, capacity=100, **config).describe()
        alone.drop_table("t")
        version = client.shards.set([server.address for server in servers[:2]]).version
        create = operations.create_table(description.to_config(), "open", shards_version=version)
        alone._session.connection.run(create)
    changes: list[Callable[[], object]] = [
        lambda: client.table("t"),
        lambda: client.shards.set([server.address for server in servers]),
    ]
    for change in changes:
        with pytest.raises(InvalidArgumentError, match=f"^{field}: .* table 't'.*{servers[0].address}"):
            change()
    shards = client.shards.map()
    assert shards is not None
    assert shards.version == version
    assert [tables_of(server) for server in servers[:2]] == [["t"], []]
    assert is_untouched(servers[2])
    client.drop_table("t")


def test_what_is_refused_leaves_no_map(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers)
    limits = {"min_size": 5, "samples_per_insert": 4.0, "error_buffer": 10.0}
    for config in ({"backend": "fifo"}, {"backend": "rank"}, limits):
        with pytest.raises(InvalidArgumentError, match=f"{servers[0].address}|3 servers"):
            client.create_table("t", columns=COLUMNS, capacity=1000, **config)
    assert all(is_untouched(server) for server in servers)
