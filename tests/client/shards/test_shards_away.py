"""A server of several is killed: learners and actors go on with the others, and nothing is lost or doubled."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from replay_client import (
    Column,
    Derived,
    InvalidArgumentError,
    Next,
    ReplayClient,
    ServerUnavailableError,
    Table,
    Transitions,
)
from replay_client._shards.keys import shard_ids
from replay_client.sync.shards.sharded_writer import ShardedWriter

from tests.client.shards.conftest import COLUMNS, away, in_order, shards_of
from tests.client.shards.test_sharded_draws import rows
from tests.client.test_cli import run
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]


@pytest.fixture
def servers(start_server: Callable[..., ServerProcess], tmp_path: Path) -> list[ServerProcess]:
    """Three durable servers."""
    return in_order(start_server("--data-dir", str(tmp_path / f"data-{number}")) for number in range(3))


@pytest.fixture
def table(servers: list[ServerProcess], reach: Reach) -> Table:
    """A table with 300 rows."""
    table = reach(servers).create_table("t", columns=COLUMNS, capacity=30_000)
    for number, shard in shards_of(table).items():
        shard.insert(rows(np.arange(100) + 100 * number), priorities=np.full(100, 1.0 + number))
    return table


@pytest.mark.timed
def test_a_learner_goes_on_without_a_killed_server(servers: list[ServerProcess], table: Table) -> None:
    with table.sampler(64, beta=0.4, prefetch=4) as sampler:
        before = next(sampler)
        assert set(shard_ids(before.row_keys).tolist()) == {0, 1, 2}
        servers[1].kill()
        longest = 0.0
        after = before
        for _ in range(10):
            began = time.perf_counter()
            after = next(sampler)
            sampler.update_priorities(after, np.ones(64))
            longest = max(longest, time.perf_counter() - began)
        assert longest <= 1.0
        assert set(shard_ids(after.row_keys).tolist()) == {0, 2}


def test_the_rows_of_a_killed_server_are_drawn_in_the_others_until_it_returns(
    servers: list[ServerProcess], table: Table
) -> None:
    whole = sum(100 * (1.0 + number + 1e-6) ** 0.6 for number in range(3))
    with table.sampler(64, beta=1.0, prefetch=3) as sampler:
        next(sampler)
        servers[1].kill()
        wait_until(lambda: next(sampler) is not None and away(sampler) == [1], "it is away")
        for _ in range(5):
            batch = next(sampler)
            owners = shard_ids(batch.row_keys)
            assert set(owners.tolist()) == {0, 2}
            left = whole - 100 * 2.000001**0.6
            expected = (1.0 + owners + 1e-6) ** 0.6 / left
            np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-9)
        held = np.arange(3, dtype=np.int64) | (1 << 48)
        sampler.update_priorities(held, [7.0, 8.0, 9.0])
        sampler.update_priorities(held[:1], [10.0])
        sampler.flush()
        servers[1].restart()
        wait_until(lambda: 1 in shard_ids(next(sampler).row_keys), "it is drawn again")
        assert away(sampler) == []
        sampler.flush()
    assert table.read(held).priorities.tolist() == [10.0, 8.0, 9.0]


def test_acknowledged_rows_are_neither_lost_nor_doubled(servers: list[ServerProcess], table: Table) -> None:
    writer = table.writer(streams=4, block_rows=16)
    appended = 0

    def write(episodes: int) -> None:
        nonlocal appended
        for _ in range(episodes):
            for _ in range(10):
                writer.append_all(number=np.arange(4) + 1000 + appended, obs=np.zeros((4, 3)))
                appended += 4
            writer.end_episodes(np.ones(4, bool))

    write(10)
    servers[2].kill()
    write(10)
    sizes = [shard.size() for shard in list(shards_of(table).values())[:2]]
    write(10)
    wait_until(
        lambda: sum(shard.size() for shard in list(shards_of(table).values())[:2]) > sum(sizes), "others get the rows"
    )
    servers[2].restart()
    writer.close(timeout_s=20)
    assert writer.acknowledged == appended
    keys = [np.arange(shard.describe().inserted) | (number << 48) for number, shard in shards_of(table).items()]
    found = table.read(np.concatenate(keys))["number"]
    assert sorted(found[found >= 1000].tolist()) == list(range(1000, 1000 + appended))


def test_a_writer_returns_to_a_server_that_restarted_while_nothing_was_in_flight(
    servers: list[ServerProcess], table: Table
) -> None:
    with table.writer() as writer:
        writer.append(number=1, obs=np.zeros(3))
        writer.end_episode()
        writer.flush()
        for server in servers:
            server.kill()
        for server in servers:
            server.restart()
        for number in range(30):
            writer.append(number=number, obs=np.zeros(3))
            writer.end_episode()
        writer.flush()
        assert isinstance(writer, ShardedWriter)
        assert writer.shards_away == []
    assert all(shard.size() > 100 for shard in shards_of(table).values())


def test_an_episode_of_steps_continues_as_a_new_one_elsewhere(servers: list[ServerProcess], reach: Reach) -> None:
    columns: dict[str, Column | Derived] = {"obs": Column("int64"), "next_obs": Next("obs")}
    table = reach(servers).create_table("steps", columns=columns, steps=Transitions(1), capacity=3000)
    with table.writer() as writer:
        assert isinstance(writer, ShardedWriter)
        writer.append(obs=0)
        writer.flush()
        (owner,) = [number for number, shard in shards_of(table).items() if shard.size()]
        servers[owner].kill()
        writer.append(obs=1)
        wait_until(lambda: writer.shards_away == [owner], "the writer notices")
        for obs in range(2, 6):
            writer.append(obs=obs)
        writer.end_episode(obs=6, terminated=True)
        servers[owner].restart()
        writer.flush(timeout_s=20)
    batch = table.sample(64, beta=0.4)
    assert (batch["next_obs"] == batch["obs"] + 1).all()
    assert set(batch["obs"].tolist()) == {0, 2, 3, 4, 5}


def test_a_server_that_returns_without_its_tables_stays_away(
    start_server: Callable[..., ServerProcess], reach: Reach
) -> None:
    servers = in_order(start_server() for _ in range(2))
    client = reach(servers)
    table = client.create_table("t", columns=COLUMNS, capacity=1000)
    for shard in shards_of(table).values():
        shard.insert(rows(np.arange(10)))
    with table.sampler(32, beta=0.4) as sampler:
        next(sampler)
        servers[1].kill()
        servers[1].restart()
        for _ in range(20):
            last = next(sampler)
        assert set(shard_ids(last.row_keys).tolist()) == {0}
    with pytest.raises(ValueError, match="replay shards lost 1"):
        client.table("t")
    client.shards.mark(1, state="lost")
    assert client.shards.set([server.address for server in servers]).shards[-1].id == 2
    assert list(shards_of(client.table("t"))) == [0, 2]


def test_without_any_server_calls_say_so(servers: list[ServerProcess], table: Table) -> None:
    with table.sampler(8, beta=0.4, reconnect_timeout_s=0.3) as sampler:
        next(sampler)
        for server in servers:
            server.kill()
        with pytest.raises(ServerUnavailableError, match="none of the servers"):
            deque(itertools.islice(sampler, 10))
        sampler.cancel()


def test_a_server_that_returns_at_another_address_is_followed(
    servers: list[ServerProcess], table: Table, reach: Reach, tmp_path: Path, start_server: Callable[..., ServerProcess]
) -> None:
    with table.sampler(64, beta=0.4, prefetch=3) as sampler, table.writer() as writer:
        writer.append(**{name: column[0] for name, column in rows(np.arange(1)).items()})
        writer.flush()
        next(sampler)
        servers[1].kill()
        wait_until(lambda: next(sampler) is not None and away(sampler) == [1], "it is away")
        held = np.arange(3, dtype=np.int64) | (1 << 48)
        sampler.update_priorities(held, [7.0, 8.0, 9.0])
        folder = servers[1].flags[servers[1].flags.index("--data-dir") + 1]
        elsewhere = start_server("--data-dir", folder)
        with pytest.raises(InvalidArgumentError, match="9"):
            reach([servers[0]]).shards.move(9, address=elsewhere.address)
        moved = reach([servers[0]]).shards.move(1, address=elsewhere.address)
        assert [shard.address for shard in moved.in_use] == [servers[0].address, elsewhere.address, servers[2].address]
        wait_until(lambda: next(sampler) is not None and away(sampler) == [], "it is back")
        sampler.flush()
        for number in range(600):  # to each shard in turn
            writer.append(**{name: column[0] for name, column in rows(np.arange(number, number + 1)).items()})
        writer.flush()
    assert len(table) == 901
    read = reach([servers[2]]).table("t").read(held)
    assert read.row_keys.tolist() == held.tolist()


def test_a_move_is_followed_although_no_given_address_answers(
    servers: list[ServerProcess], table: Table, reach: Reach, start_server: Callable[..., ServerProcess]
) -> None:
    """The client asks the other servers that it has found."""
    followed = reach(servers[:1]).table("t")
    with followed.sampler(64, beta=0.4) as sampler:
        servers[0].kill()
        wait_until(lambda: next(sampler) is not None and away(sampler) == [0], "it is away")
        folder = servers[0].flags[servers[0].flags.index("--data-dir") + 1]
        reach(servers[1:2]).shards.move(0, address=start_server("--data-dir", folder).address)
        wait_until(lambda: next(sampler) is not None and away(sampler) == [], "it is back")
    assert followed.read(np.arange(100)).row_keys.tolist() == list(range(100))


def test_the_command_that_lists_tables_names_a_missing_server(servers: list[ServerProcess], table: Table) -> None:
    servers[1].kill()
    for options in ([], ["--json"]):
        done = run("tables", *options, "--server", ",".join(server.address for server in servers))
        assert done.returncode == 0
        assert f"shard 1 at {servers[1].address} is away: rows not counted" in done.stderr
