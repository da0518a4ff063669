"""A service of three servers with live pages, and tables whose shards differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from replay_client import Column, ReplayClient, ShardedTable, Table

from tests.support.http_port import FLAGS
from tests.support.server_process import ServerProcess

ROWS = (100, 200, 300)
"""Rows of the shards of a filled table. The priorities are 1, 2 and 3, so the masses are 100, 400 and 900."""


def start_service(start_server: Callable[..., ServerProcess], *flags: str) -> list[ServerProcess]:
    """Start the servers, and return them in the order of their shards."""
    return sorted((start_server(*FLAGS, *flags) for _ in ROWS), key=lambda server: server.address)


def addresses(servers: Sequence[ServerProcess], host: str = "127.0.0.1") -> str:
    """The addresses of servers, as a client takes them."""
    return ",".join(f"{host}:{server.port}" for server in servers)


def filled(client: ReplayClient, name: str = "t") -> Table:
    """Create a table with these rows."""
    table = client.create_table(name, columns={"x": Column("int64")}, capacity=3000, alpha=1.0, epsilon=0.0)
    assert isinstance(table, ShardedTable)
    for shard, count in zip(table.shards.values(), ROWS, strict=True):
        shard.insert({"x": np.arange(count)}, priorities=np.full(count, count / 100))
    return table
