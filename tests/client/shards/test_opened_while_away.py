"""Keys of a server that was away when the table was opened are an error, and never taken for stale ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_client import Column, ReplayClient, Sampler, ServerUnavailableError, Table, Transitions, UpdateResult
from replay_client._shards.keys import global_keys

from tests.client.shards.conftest import in_order, shards_of
from tests.support.server_process import ServerProcess

Keys = NDArray[np.int64]
Reach = Callable[..., ReplayClient]

KEYS = np.concatenate([global_keys(shard, np.arange(5, 15)) for shard in (0, 1)])
"""The keys that the tests use; the first five of each shard's keys are evicted."""
LIVE = KEYS[(KEYS & 0xFF) >= 10]


@pytest.fixture
def servers(start_server: Callable[..., ServerProcess], tmp_path: Path, reach: Reach) -> list[ServerProcess]:
    """Two durable servers, each with 10 live rows of table t: those with the local keys 10 to 19."""
    servers = in_order(start_server("--data-dir", str(tmp_path / f"data-{number}")) for number in range(2))
    table = reach(servers).create_table("t", columns={"value": Column("int64", mutable=True)}, capacity=20)
    for shard in shards_of(table).values():
        for start in (0, 10):
            shard.insert({"value": np.arange(start, start + 10)})
    return servers


@pytest.fixture
def table(servers: list[ServerProcess], reach: Reach) -> Table:
    """Table t, opened while the second server is away."""
    servers[1].kill()
    return reach(servers[:1], timeout_s=2.0).table("t")


def sampled(do: Callable[[Sampler, Keys], None]) -> Callable[[Table, Keys], UpdateResult]:
    """A write through a sampler of its own, which counts the rows."""

    def call(table: Table, keys: Keys) -> UpdateResult:
        with table.sampler(4, beta=0.4) as sampler:
            do(sampler, keys)
            sampler.flush()
            return UpdateResult(sampler.updated, sampler.stale)

    return call


CALLS: dict[str, Callable[[Table, Keys], object]] = {
    "read": lambda table, keys: table.read(keys).row_keys.tolist(),
    "update_priorities": lambda table, keys: table.update_priorities(keys, np.ones(len(keys))),
    "update": lambda table, keys: table.update(keys, {"value": keys}),
    "sampler.update_priorities": sampled(lambda sampler, keys: sampler.update_priorities(keys, np.ones(len(keys)))),
    "sampler.update": sampled(lambda sampler, keys: sampler.update(keys, {"value": keys})),
}


@pytest.mark.parametrize("name", CALLS)
def test_keys_of_an_unreachable_server_are_an_error_until_it_returns(
    servers: list[ServerProcess], table: Table, name: str
) -> None:
    call = CALLS[name]
    expected = LIVE.tolist() if name == "read" else UpdateResult(len(LIVE), len(KEYS) - len(LIVE))
    call(table, KEYS[:10])  # of the other server
    with pytest.raises(ServerUnavailableError, match=f"shard 1 at {servers[1].address}"):
        call(table, KEYS)
    servers[1].restart()
    assert call(table, KEYS) == expected


def test_an_episode_of_an_unreachable_server_is_an_error(servers: list[ServerProcess], reach: Reach) -> None:
    table = reach(servers).create_table("e", columns={"value": Column("int64")}, steps=Transitions(1), capacity=200)
    with table.writer() as writer:
        for value in range(40):
            writer.append(value=value)
            writer.end_episode(terminated=True)
    key = int(global_keys(1, np.array([0]))[0])
    expected = table.episode(key)["value"].tolist()
    servers[1].kill()
    table = reach(servers[:1], timeout_s=2.0).table("e")
    with pytest.raises(ServerUnavailableError, match=f"shard 1 at {servers[1].address}"):
        table.episode(key)
    servers[1].restart()
    assert table.episode(key)["value"].tolist() == expected


def test_all_rows_are_read_as_soon_as_the_server_is_back(servers: list[ServerProcess], table: Table) -> None:
    servers[1].restart()
    assert sum(len(rows.row_keys) for rows in table.rows()) == 20


def test_keys_of_a_server_that_was_added_just_now_are_found(
    servers: list[ServerProcess], reach: Reach, start_server: Callable[..., ServerProcess]
) -> None:
    table = reach(servers).table("t")
    servers.append(start_server())
    with_all = reach(servers[:1])
    with_all.shards.set([server.address for server in servers])
    keys = global_keys(2, shards_of(with_all.table("t"))[2].insert({"value": np.arange(3)}))
    assert table.read(keys)["value"].tolist() == [0, 1, 2]


def test_keys_of_a_server_that_was_given_up_are_stale(servers: list[ServerProcess], table: Table, reach: Reach) -> None:
    reach(servers[:1]).shards.mark(1, state="lost")
    for _ in range(2):
        assert table.read(KEYS).row_keys.tolist() == LIVE[:5].tolist()
    assert table.update_priorities(KEYS, np.ones(20)) == UpdateResult(5, 15)
