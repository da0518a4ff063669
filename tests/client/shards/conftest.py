"""Fixtures: several servers, and clients of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from replay_client import Column, ReplayClient, Sampler, ShardedTable, Table
from replay_client.sync.shards.drawing.sharded_sampler import ShardedSampler

from tests.support.server_process import ServerProcess

COLUMNS = {"number": Column("int64"), "obs": Column("float32", (3,))}
"""Columns of the tests' tables."""


@pytest.fixture
def servers(start_server: Callable[..., ServerProcess]) -> list[ServerProcess]:
    """Three servers, in the order of their shards."""
    return in_order(start_server() for _ in range(3))


def shards_of(table: Table) -> dict[int, Table]:
    """The table of each shard by id."""
    assert isinstance(table, ShardedTable)
    return table.shards


def away(sampler: Sampler) -> list[int]:
    """The shards whose servers are away."""
    assert isinstance(sampler, ShardedSampler)
    return sampler.shards_away


def in_order(started: Iterator[ServerProcess]) -> list[ServerProcess]:
    """Sort servers as a client does when it numbers their shards."""
    return sorted(started, key=lambda server: server.address)


@pytest.fixture
def reach() -> Iterator[Callable[..., ReplayClient]]:
    """Creates clients of several servers."""
    made: list[ReplayClient] = []

    def reach_all(servers: list[ServerProcess], **options: Any) -> ReplayClient:
        made.append(ReplayClient(",".join(server.address for server in servers), **options))
        return made[-1]

    yield reach_all
    for client in made:
        client.close()
