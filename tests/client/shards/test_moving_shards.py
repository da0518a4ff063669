"""Servers are added, drained and given up while learners and actors run; no call fails, no row is lost or doubled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from replay_client import (
    Column,
    Derived,
    InvalidArgumentError,
    Next,
    ReplayClient,
    ServerUnavailableError,
    ShardedTable,
    Table,
    Transitions,
)
from replay_client._shards.keys import shard_ids
from replay_client.sync.shards.sharded_writer import ShardedWriter

from tests.client.shards.conftest import COLUMNS, shards_of
from tests.client.shards.test_sharded_draws import rows
from tests.client.test_cli import run
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]
STEPS: dict[str, Column | Derived] = {"obs": Column("int64"), "next_obs": Next("obs")}


def make(client: ReplayClient, **config: Any) -> Table:
    return client.create_table("t", **{"columns": COLUMNS, "capacity": 30_000, **config})


def numbers_of(table: Table) -> NDArray[np.int64]:
    """The column ``number`` of all rows in shards that are there."""
    keys = [np.arange(shard.describe().inserted) | (number << 48) for number, shard in shards_of(table).items()]
    return np.sort(table.read(np.concatenate(keys))["number"])


def is_draining(table: Table, shard_id: int) -> bool:
    """Whether the table knows that a shard gets no new rows."""
    assert isinstance(table, ShardedTable)
    return not {member.id: member.is_active for member in table._members}[shard_id]


def owners_drawn(batch: Any) -> set[int]:
    return set(shard_ids(batch.row_keys).tolist())


def test_learners_and_actors_follow_from_two_servers_to_three_and_back(
    servers: list[ServerProcess], reach: Reach
) -> None:
    client = reach(servers[:2])
    table = make(client)
    table.insert(rows(np.arange(10)))
    is_over = threading.Event()
    appended = 0

    def act() -> int:
        number = 10
        with table.writer(streams=3, block_rows=8) as writer:
            while not is_over.is_set():
                for _ in range(10):
                    writer.append_all(number=number + np.arange(3), obs=np.zeros((3, 3)))
                    number += 3
                writer.end_episodes(np.ones(3, bool))
                writer.flush()
        return number

    with ThreadPoolExecutor(1) as pool, table.sampler(64, beta=0.4, prefetch=3) as sampler:
        actor = pool.submit(act)
        try:

            def step() -> set[int]:
                assert not actor.done(), actor.exception()
                batch = next(sampler)
                sampler.update_priorities(batch, np.ones(64))
                return owners_drawn(batch)

            wait_until(lambda: step() == {0, 1}, "both are drawn")
            client.shards.set([server.address for server in servers])
            wait_until(lambda: step() == {0, 1, 2}, "the new one is drawn")
            client.shards.mark(0, state="draining")
            first = shards_of(table)[0]
            wait_until(lambda: len(step()) > 0 and is_draining(table, 0), "it is known to drain")
            settled = first.describe().inserted
            for _ in range(30):
                assert step() <= {0, 1, 2}
            assert first.describe().inserted <= settled + 30  # what was on its way
            assert 0 in step() | step() | step()
        finally:
            is_over.set()
        appended = actor.result()
    assert numbers_of(table).tolist() == list(range(appended))


def test_a_shard_moves_only_to_a_server_that_has_its_map(
    servers: list[ServerProcess], reach: Reach, start_server: Callable[..., ServerProcess]
) -> None:
    """Others have no tables of it, and may have those of another service."""
    client = reach(servers[:2])
    make(client)
    before = client.shards.map()
    elsewhere, added = start_server(), start_server()
    make(reach([elsewhere, added]))
    alone = servers[2]
    for address, got in (
        (alone.address, "which has no shard map"),
        (elsewhere.address, "which belongs to another service"),
        (f"localhost:{servers[1].port}", "which is the server of shard 1"),
    ):
        with pytest.raises(InvalidArgumentError, match=got):
            client.shards.move(0, address=address)
    alone.kill()
    with pytest.raises(ServerUnavailableError):
        reach(servers[:2], timeout_s=1.0).shards.move(0, address=alone.address)
    assert client.shards.map() == before
    moved = client.shards.move(0, address=f"localhost:{servers[0].port}")  # another name of the same server
    assert moved.in_use[0].address == f"localhost:{servers[0].port}"


def test_a_server_is_added_and_another_retired_while_four_actors_write(
    servers: list[ServerProcess], reach: Reach
) -> None:
    table = make(reach(servers[:2]), capacity=1200)
    table.insert(rows(np.array([-1])))
    leaving = shards_of(table)[0]
    is_over = threading.Event()

    def act(seed: int) -> int:
        number = 0
        with make(reach(servers[:2]), capacity=1200).writer(streams=2) as writer:
            while not is_over.is_set():
                for _ in range(1 + seed):
                    numbers = 4 * (number + np.arange(2)) + seed
                    writer.append_all(number=numbers, obs=np.zeros((2, 3)))
                    number += 2
                writer.end_episodes(np.ones(2, bool))
                writer.flush()
        return number

    with ThreadPoolExecutor(5) as pool, table.sampler(64, beta=0.4, prefetch=3) as sampler:
        actors = [pool.submit(act, seed) for seed in range(4)]

        def step() -> set[int]:
            batch = next(sampler)
            sampler.update_priorities(batch, np.ones(64))
            return owners_drawn(batch)

        def change(*arguments: str) -> None:
            """Run a command while the learner goes on."""
            running = pool.submit(run, "shards", *arguments, "-s", servers[2].address)
            while not running.done():
                step()
            assert running.result().returncode == 0, running.result().stderr

        try:
            wait_until(lambda: step() == {0, 1}, "both are drawn")
            reach(servers[:2]).shards.set([server.address for server in servers])
            wait_until(lambda: step() == {0, 1, 2}, "the new one is drawn")
            change("drain", "0")
            change("retire", "0", "--wait")
            inserted = leaving.describe().inserted
            evicted = leaving.read(np.arange(inserted))["number"]
            servers[0].kill()
            wait_until(lambda: step() == {1, 2}, "the retired one is forgotten")
            assert set().union(*(step() for _ in range(50))) == {1, 2}
            assert not any(actor.done() for actor in actors)
        finally:
            is_over.set()
        appended = sum(actor.result() for actor in actors)
    left = shards_of(reach(servers[2:]).table("t"))
    assert sorted(left) == [1, 2]
    assert inserted + sum(shard.describe().inserted for shard in left.values()) == appended + 1
    numbers = np.concatenate([shard.read(np.arange(shard.describe().inserted))["number"] for shard in left.values()])
    assert len(np.unique(numbers)) == len(numbers) == 1200
    for seed in range(4):
        assert numbers[numbers % 4 == seed].min() > evicted[evicted % 4 == seed].max()


def test_rows_that_a_lost_server_has_not_acknowledged_are_inserted_elsewhere(
    servers: list[ServerProcess], reach: Reach
) -> None:
    client = reach(servers)
    table = make(client)
    sampler = table.sampler(16, beta=0.4)
    with table.writer(streams=4, block_rows=4) as writer:
        assert isinstance(writer, ShardedWriter)
        number = 0

        def write(episodes: int) -> None:
            nonlocal number
            for _ in range(episodes):
                for _ in range(5):
                    writer.append_all(number=number + np.arange(4), obs=np.zeros((4, 3)))
                    number += 4
                writer.end_episodes(np.ones(4, bool))

        write(10)
        writer.flush()
        acknowledged = shards_of(table)[2].describe().inserted
        servers[2].kill()
        while not writer.shards_away:
            write(1)
        write(5)
        next(sampler)
        assert writer.in_flight > 0
        client.shards.mark(2, state="lost")
        writer.flush(timeout_s=20)
        assert writer.acknowledged == number
        assert writer.shards_away == []
    there = numbers_of(table)
    assert len(there) == len(np.unique(there)) == number - acknowledged
    assert table.stats().lost == acknowledged
    wait_until(lambda: owners_drawn(next(sampler)) == {0, 1} and "2 at" not in repr(table), "it is forgotten")
    sampler.update_priorities(np.array([2 << 48]), [1.0])
    sampler.close()
    assert sampler.stale == 1


def test_steps_of_a_lost_server_are_inserted_elsewhere_in_their_order(
    servers: list[ServerProcess], reach: Reach
) -> None:
    client = reach(servers[:2])
    table = make(client, columns=STEPS, steps=Transitions(1))
    with table.writer(block_rows=3) as writer:
        assert isinstance(writer, ShardedWriter)
        writer.append(obs=0)
        writer.flush()
        (owner,) = [number for number, shard in shards_of(table).items() if shard.size()]
        servers[owner].kill()
        for obs in range(1, 30):  # until it is noticed, rows are for the lost server
            writer.append(obs=obs, priority=float(obs) if obs > 1 and not writer.shards_away else None)
        wait_until(lambda: writer.shards_away == [owner], "the writer notices")
        for obs in range(30, 33):
            writer.append(obs=obs, priority=7.0)  # a step of an episode that was abandoned there
        writer.end_episode(obs=33, terminated=True, priorities=[9.0])
        client.shards.mark(owner, state="lost")
        writer.flush(timeout_s=20)
        assert writer.acknowledged == 34
    batch = table.sample(512, beta=0.4)
    assert (batch["next_obs"] == batch["obs"] + 1).all()
    assert {30, 31, 32} <= set(batch["obs"].tolist())
    assert len(set(batch["obs"].tolist())) > 25


@pytest.mark.parametrize("are_all", [False, True])
def test_priorities_of_steps_that_went_to_a_lost_server_are_left_out(
    servers: list[ServerProcess], reach: Reach, are_all: bool
) -> None:
    client = reach(servers[:2])
    table = make(client, columns=STEPS, steps=Transitions(2))
    with table.writer(block_rows=3) as writer:
        assert isinstance(writer, ShardedWriter)
        writer.append(obs=0)
        writer.flush()
        (owner,) = [number for number, shard in shards_of(table).items() if shard.size()]
        servers[owner].kill()
        for obs in range(1, 60):
            if are_all:
                writer.append_all(obs=np.array([obs]), priorities=np.array([float(obs)]), steps_ago=1)
            else:
                writer.append(obs=obs, priority=float(obs), steps_ago=1)
        wait_until(lambda: writer.shards_away == [owner], "the writer notices")
        for obs in range(60, 64):
            if are_all:
                writer.append_all(obs=np.array([obs]), priorities=np.array([float(obs)]), steps_ago=1)
            else:
                writer.append(obs=obs, priority=float(obs), steps_ago=1)
        writer.end_episode(obs=64, priorities=[64.0, 65.0])
        client.shards.mark(owner, state="lost")
        writer.flush(timeout_s=20)
    (left,) = shards_of(client.table("t")).values()
    rows_left = left.read(np.arange(left.describe().inserted))
    known = dict(zip(rows_left["obs"].tolist(), rows_left.priorities.tolist(), strict=True))
    assert (known[60], known[61]) == (61.0, 62.0)
    assert (known[62], known[63]) == (64.0, 65.0)


@pytest.mark.parametrize("streams", [1, 4])
def test_an_actor_that_waits_for_a_killed_server_goes_on_elsewhere(
    servers: list[ServerProcess], reach: Reach, streams: int
) -> None:
    client = reach(servers[:2])
    shards_of(make(client))[1].insert(rows(np.arange(100) + 100))  # so that the other one gets the next rows
    table = client.table("t")
    with table.writer(streams=streams, block_rows=streams, max_blocks_in_flight=1) as writer:
        stopped = psutil.Process(servers[0].pid)
        stopped.suspend()
        is_done = threading.Event()

        def write() -> None:
            for number in range(20):
                writer.append_all(number=np.full(streams, number), obs=np.zeros((streams, 3)))
            is_done.set()

        actor = threading.Thread(target=write)
        actor.start()
        assert not is_done.wait(0.2)
        servers[0].kill()
        actor.join(20)
        assert is_done.is_set()
        reach(servers[1:2]).shards.mark(0, state="lost")
        writer.flush(timeout_s=20)
    assert np.bincount(numbers_of(client.table("t"))).tolist() == [streams] * 20 + [0] * 80 + [1] * 100
