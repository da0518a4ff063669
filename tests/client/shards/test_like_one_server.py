"""Where a table on several servers once differed from one on a single server, without saying so."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from replay_client import (
    Column,
    DeadlineExceededError,
    InvalidArgumentError,
    Next,
    ReplayClient,
    ServerUnavailableError,
    Table,
    Transitions,
)
from replay_client.sync.shards.sharded_writer import ShardedWriter

from tests.client.shards.conftest import shards_of
from tests.support.deadlines import PATIENCE_S, wait_until
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]
ROWS = {"x": Column("int64")}
STEPS: dict[str, Any] = {"columns": {"x": Column("int64"), "y": Next("x")}, "capacity": 30_000}


@pytest.fixture
def two(servers: list[ServerProcess]) -> list[ServerProcess]:
    """The first two servers."""
    return servers[:2]


def table_of(client: ReplayClient, rows: int, **config: Any) -> Table:
    """A table with so many rows in each of its shards, all with priority 1."""
    table = client.create_table("t", columns=ROWS, capacity=2000, **config)
    for shard in shards_of(table).values():
        shard.insert({"x": np.arange(rows)}, priorities=np.ones(rows))
    return table


def writer_of(table: Table, streams: int = 1) -> ShardedWriter:
    writer = table.writer(streams=streams)
    assert isinstance(writer, ShardedWriter)
    return writer


def test_single_draws_from_a_table_with_a_seed_come_from_all_shards(two: list[ServerProcess], reach: Reach) -> None:
    table = table_of(reach(two), 100, seed=0)
    drawn = [int(table.sample(1).row_keys[0]) >> 48 for _ in range(40)]
    assert set(drawn) == {0, 1}  # by chance, one in 5e11 runs fails


def test_new_rows_get_the_largest_priority_after_single_updates(two: list[ServerProcess], reach: Reach) -> None:
    table = table_of(reach(two), 10)
    first, second = shards_of(table).values()
    table.update_priorities(np.arange(10), np.full(10, 100.0))
    assert second.read(second.insert({"x": np.arange(3)})).priorities.tolist() == [100.0] * 3
    assert first.read(first.insert({"x": np.arange(3)})).priorities.tolist() == [100.0] * 3


def test_a_sampler_that_is_dropped_sends_its_last_updates(two: list[ServerProcess], reach: Reach) -> None:
    table = table_of(reach(two), 50)
    sampler = table.sampler(100, prefetch=1)
    batch = next(sampler)
    sampler.update_priorities(batch, np.full(100, 7.0))
    del sampler
    gc.collect()
    wait_until(lambda: bool((table.read(batch).priorities == 7.0).all()), "the updates arrive", PATIENCE_S)


def test_a_single_draw_waits_for_servers_that_restart(
    start_server: Callable[..., ServerProcess], reach: Reach, tmp_path_factory: pytest.TempPathFactory
) -> None:
    servers = [start_server("--data-dir", str(tmp_path_factory.mktemp("data") / "data")) for _ in range(2)]
    table = table_of(reach(servers, timeout_s=PATIENCE_S), 10)
    for server in servers:
        server.kill()

    def restart() -> None:
        for server in servers:
            server.restart()

    restarting = threading.Timer(1.0, restart)
    restarting.start()
    assert table.sample(4).batch_size == 4
    restarting.join()


def test_a_writer_leaves_a_server_that_was_removed_within_an_episode(two: list[ServerProcess], reach: Reach) -> None:
    table = reach(two).create_table("t", steps=Transitions(), **STEPS)
    with writer_of(table) as writer:
        writer.append(x=0)
        (gone,) = writer._shard.tolist()
        reach(two).shards.mark(gone, state="retired")

        def has_left() -> bool:
            writer.append(x=1)
            return writer._shard.tolist() != [gone]

        wait_until(has_left, "it writes to the other shard", PATIENCE_S)


def test_versions_of_publications_rise_when_the_first_server_is_removed(two: list[ServerProcess], reach: Reach) -> None:
    publisher, reader = reach(two), reach(two)
    first = publisher.publish("policy", {"w": np.zeros(3)})
    assert reader.latest("policy").version == first
    publisher.shards.mark(0, state="draining")
    second = publisher.publish("policy", {"w": np.ones(3)})
    assert second > first
    assert reader.latest("policy", wait_newer=first, timeout_s=PATIENCE_S).version == second
    assert reach(two).latest("policy", timeout_s=PATIENCE_S).version == second
    publisher.shards.mark(0, state="retired")

    def third() -> bool:
        try:
            return reach(two).publish("policy", {"w": np.full(3, 2.0)}) > 1 << 40
        except (ServerUnavailableError, DeadlineExceededError):
            return False

    wait_until(third, "the other server has the publication", PATIENCE_S)
    newest = reader.latest("policy", wait_newer=second, timeout_s=PATIENCE_S)
    assert newest.version > second
    assert newest.values["w"].tolist() == [2.0] * 3


def test_rows_of_all_streams_are_appended_although_a_server_is_removed_meanwhile(
    two: list[ServerProcess], reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = reach(two).create_table("t", steps=Transitions(), **STEPS)
    writer = writer_of(table, streams=8)
    writer.append_all(x=np.zeros(8, np.int64))
    reach(two).shards.mark(0, state="retired")
    before_row = ShardedWriter._before_row

    def renewed(self: ShardedWriter, stream: int) -> None:
        if stream == 4:
            self._writers._roster._renew()
        before_row(self, stream)

    monkeypatch.setattr(ShardedWriter, "_before_row", renewed)
    writer.append_all(x=np.ones(8, np.int64))
    assert set(writer._shard.tolist()) == {1}
    writer.abort()


def test_no_row_is_appended_if_a_priority_of_any_shard_is_invalid(two: list[ServerProcess], reach: Reach) -> None:
    table = reach(two).create_table("t", steps=Transitions(n_step=3), **STEPS)
    while True:
        writer = writer_of(table, streams=8)
        for value in range(2):
            writer.append_all(x=np.full(8, value))
        writer.end_episodes(np.arange(8) == 7, x=np.zeros(8, np.int64))
        if writer._shard[7] == 1 and (writer._shard[:7] == 0).any():
            break
        writer.abort()
    writer.flush()
    with pytest.raises(InvalidArgumentError, match="steps_ago: expected 0 to 0"):
        writer.append_all(x=np.full(8, 2), priorities=np.ones(8), steps_ago=2)
    assert writer.in_flight == 0
    writer.abort()
