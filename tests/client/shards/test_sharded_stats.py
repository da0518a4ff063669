"""Statistics of tables on several servers: sums, mixed quantiles, servers that are away, and what the command shows."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from replay_client import ReplayClient, Table
from replay_proto.merged_stats import merged_table_stats, mixed_quantiles
from replay_proto.v1 import replay_pb2

from tests.client.shards.conftest import COLUMNS, shards_of
from tests.client.shards.test_sharded_draws import rows
from tests.client.test_cli import run
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]
ROWS = (100, 200, 300)
"""Rows of the shards."""


def filled(client: ReplayClient) -> Table:
    """A table whose shards have different numbers of rows, and priorities 1, 2 and 3."""
    table = client.create_table("t", columns=COLUMNS, capacity=3000, alpha=1.0, epsilon=0.0)
    for shard, count in zip(shards_of(table).values(), ROWS, strict=True):
        shard.insert(rows(np.arange(count)), priorities=np.full(count, count / 100))
    return table


def test_counts_masses_and_bars_add(servers: list[ServerProcess], reach: Reach) -> None:
    table = filled(reach(servers))
    batch = table.sample(1000, beta=0.4)
    table.update_priorities(batch, batch["number"] % 7 + 1.0)
    table.update_priorities(np.array([-1]), [1.0])
    for client in (reach(servers), reach(servers[1:2])):
        for stats in (client.table("t").stats(), client.stats().tables["t"]):
            assert (stats.size, stats.inserted, stats.capacity) == (600, 600, 3000)
            assert stats.sampled == 1000
            assert stats.updated == len(np.unique(batch.row_keys))
            assert stats.total_mass == pytest.approx(sum(part.total_mass for part in stats.shards.values()))
            assert (stats.smallest_priority, stats.largest_priority) == (1.0, 7.0)
            assert sum(bar.rows for bar in stats.times_sampled) == 600
            assert [stats.shards[number].size for number in (0, 1, 2)] == list(ROWS)
            assert stats.shards_away == ()
        assert [(each.name, each.size) for each in client.tables()] == [("t", 600)]
        whole = client.stats()
        assert whole.server.methods["CreateTable"].calls == 3
        assert whole.server.resident_bytes == sum(server.resident_bytes for server in whole.servers.values())


def test_statistics_before_the_first_table_change_nothing(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers)
    assert len(client.stats().servers) == 3
    assert client.tables() == []
    assert client.shards.map() is None
    assert reach(servers[:1]).stats().shards is None


def test_a_server_that_is_away_is_named(servers: list[ServerProcess], reach: Reach) -> None:
    filled(reach(servers))
    servers[1].kill()
    client = reach(servers[2:], wait_for_server_s=1.0)
    stats = client.stats()
    assert stats.shards_away == (1,)
    assert list(stats.servers) == [0, 2]
    assert stats.tables["t"].size == 400
    assert stats.tables["t"].shards_away == (1,)
    screen = run("stats", "-s", servers[0].address).stdout
    assert f"shard 1 at {servers[1].address} is away" in screen
    servers[1].restart()  # without its tables, which were in memory
    assert client.stats().shards_away == (1,)


def test_calls_that_wait_in_different_shards_add_up() -> None:
    here = replay_pb2.WaitStats(waited_for="inserts", calls=2, have=1, needed=5, waited_s=1.0, expected_s=2.0)
    there = replay_pb2.WaitStats(waited_for="inserts", calls=1, have=1, needed=5, waited_s=3.0)
    parts = {shard_id: replay_pb2.TableStats(waits=[wait]) for shard_id, wait in enumerate((here, there))}
    assert [*merged_table_stats(parts, replay_pb2.ShardMap()).waits] == [
        replay_pb2.WaitStats(waited_for="inserts", calls=3, have=2, needed=10, waited_s=3.0),
    ]


def test_priorities_of_steps_weigh_as_much_as_the_rows_that_can_be_drawn() -> None:
    parts = {
        shard_id: replay_pb2.TableStats(
            table=replay_pb2.TableDescription(size=100),
            steps=replay_pb2.StepStats(drawable=drawable),
            priorities=[replay_pb2.Quantile(fraction=fraction, value=value) for fraction in (0.0, 0.5, 1.0)],
        )
        for shard_id, (drawable, value) in enumerate(((10, 1.0), (90, 2.0)))
    }
    whole = merged_table_stats(parts, replay_pb2.ShardMap())
    assert [quantile.value for quantile in whole.priorities] == [1.0, 2.0, 2.0]


def test_quantiles_of_a_mixture_are_close_to_those_of_all_rows() -> None:
    random = np.random.default_rng(1)
    fractions = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
    parts = [random.exponential(scale, count) for scale, count in ((1.0, 3000), (5.0, 1000), (0.1, 500))]
    known = [(dict(zip(fractions, np.quantile(part, fractions), strict=True)), len(part)) for part in parts]
    mixed = mixed_quantiles([*known, ({}, 0)])
    everything = np.sort(np.concatenate(parts))
    for fraction, value in mixed.items():
        assert np.searchsorted(everything, value) / len(everything) == pytest.approx(fraction, abs=0.03)
    assert (mixed[0.0], mixed[1.0]) == (everything[0], everything[-1])
    assert mixed_quantiles(known[:1]) == known[0][0]


def test_the_command_shows_the_table_and_then_its_shards(servers: list[ServerProcess], reach: Reach) -> None:
    filled(reach(servers))
    address = servers[1].address
    lines = run("stats", "-s", address).stdout.splitlines()
    assert lines[0].startswith("3 servers")
    assert any(line.split()[:3] == ["t", "sum_tree", "600"] for line in lines)
    assert max(map(len, lines)) <= 80
    lines = run("stats", "t", "-s", ",".join(server.address for server in servers)).stdout.splitlines()
    assert any("600 of 3,000, 20%" in line for line in lines)
    shards = [line.split() for line in lines if "127.0.0.1" in line]
    assert [(line[0], line[3]) for line in shards] == [("0", "100"), ("1", "200"), ("2", "300")]
    assert max(map(len, lines)) <= 80
    found = json.loads(run("stats", "-s", address, "--json").stdout)
    assert found["tables"]["t"]["size"] == 600
    assert [found["tables"]["t"]["shards"][number]["size"] for number in "012"] == list(ROWS)
    assert found["shards_away"] == []


def test_a_table_is_dropped_everywhere_from_one_address(servers: list[ServerProcess], reach: Reach) -> None:
    filled(reach(servers))
    reach(servers[1:2]).drop_table("t")
    assert reach(servers).tables() == []
