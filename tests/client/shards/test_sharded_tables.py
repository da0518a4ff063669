"""Tables on several servers: opened from any of them, filled evenly, the same for all clients."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest
from replay_client import (
    Column,
    InvalidArgumentError,
    Next,
    ReplayClient,
    Sampler,
    Table,
    TableNotFoundError,
    Transitions,
    Writer,
)
from replay_client._operations.server import list_tables
from replay_client._shards.keys import shard_ids
from replay_client.sync.shards.servers import fleet

from tests.client.shards.conftest import COLUMNS, shards_of
from tests.client.shards.test_sharded_draws import rows
from tests.client.test_cli import run
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]


def make(client: ReplayClient, **config: Any) -> Table:
    return client.create_table("t", **{"columns": COLUMNS, "capacity": 1000, **config})


def test_one_address_suffices_once_there_is_a_map(servers: list[ServerProcess], reach: Reach) -> None:
    table = make(reach(servers))
    assert table.created
    keys = table.insert(rows(np.arange(5)))
    for server in servers:
        alone = reach([server])
        for found in (alone.table("t"), make(alone), pickle.loads(pickle.dumps(table))):
            assert found.read(keys)["number"].tolist() == list(range(5))
            assert found.uid == table.uid
    shards = reach(servers[::-1]).shards.map()
    assert shards is not None
    assert [(shard.id, shard.address) for shard in shards.shards] == [
        (number, server.address) for number, server in enumerate(servers)
    ]
    with pytest.raises(TableNotFoundError):
        reach(servers).table("absent")


def test_what_is_published_is_on_the_first_server(servers: list[ServerProcess], reach: Reach) -> None:
    learner = reach(servers)
    for number in range(1, 7):
        assert learner.publish("policy", {"w": np.full(100_000, number)}) == number
    actor = reach([servers[2]])
    found = actor.latest("policy")
    assert (found.version, np.unique(found.values["w"]).tolist()) == (6, [6])
    shards = shards_of(actor.table("policy"))
    assert [len(shard) > 0 for shard in shards.values()] == [True, False, False]
    learner.shards.mark(0, state="draining")
    assert reach(servers).publish("policy", {"w": np.full(100_000, 7)}) == 7
    assert actor.latest("policy", wait_newer=6).values["w"][0] == 7


def test_the_client_that_creates_the_map_may_be_slow(
    servers: list[ServerProcess], reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "_SPREADING_S", 0.0)
    assert sorted(shards_of(make(reach(servers)))) == [0, 1, 2]


def test_clients_that_start_together_agree(servers: list[ServerProcess], reach: Reach) -> None:
    clients = [reach(servers[first:] + servers[:first]) for first in (0, 1, 2, 0)]
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(make, clients))
    assert len({table.uid for table in tables}) == 1
    assert {tuple(shards_of(table)) for table in tables} == {(0, 1, 2)}


def test_what_cannot_be_distributed_is_refused_by_name(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers)
    for backend, why in (("fifo", "a queue has one order"), ("rank", "use one server or .sum_tree.")):
        expected = rf"^backend.*{why}.*on 3 servers, {servers[0].address}.*{servers[2].address}"
        with pytest.raises(InvalidArgumentError, match=expected):
            make(client, backend=backend)
    with pytest.raises(InvalidArgumentError, match=r"error_buffer.*on each of 3 servers"):
        make(client, min_size=5, samples_per_insert=4.0, error_buffer=10.0)
    assert not client.tables()


def test_a_server_that_is_not_in_the_map_is_refused(servers: list[ServerProcess], reach: Reach) -> None:
    make(reach(servers[:2]))
    with pytest.raises(InvalidArgumentError, match="replay shards set"):
        make(reach(servers))


def test_inserts_fill_the_shards_evenly(servers: list[ServerProcess], reach: Reach) -> None:
    table = make(reach(servers), capacity=300_000)
    owners = shard_ids(np.concatenate([table.insert(rows(np.arange(50))) for _ in range(60)]))
    counts = np.bincount(owners)
    assert counts.max() / counts.mean() <= 1.1
    assert len(table) == 3000
    assert table.describe().capacity == 300_000


def test_many_writers_fill_the_shards_evenly(servers: list[ServerProcess], reach: Reach) -> None:
    table = make(reach(servers), capacity=300_000)
    writers = [table.writer() for _ in range(16)]
    random = np.random.default_rng(1)
    for _ in range(50):
        for writer in writers:
            for number in range(int(random.integers(5, 30))):
                writer.append(number=number, obs=np.zeros(3))
            writer.end_episode()
    for writer in writers:
        writer.close()
    sizes = [shard.size() for shard in shards_of(table).values()]
    assert sum(sizes) == sum(writer.acknowledged for writer in writers)
    assert max(sizes) / np.mean(sizes) <= 1.05


def test_writers_fill_a_server_no_more_than_others_while_its_replies_are_late(
    servers: list[ServerProcess], reach: Reach
) -> None:
    table = make(reach(servers), capacity=300_000)
    writers = [table.writer() for _ in range(16)]
    stopped = psutil.Process(servers[1].pid)
    stopped.suspend()
    try:
        for _ in range(12):
            for writer in writers:
                for number in range(20):
                    writer.append(number=number, obs=np.zeros(3))
                writer.end_episode()
    finally:
        stopped.resume()
    for writer in writers:
        writer.close()
    sizes = [shard.size() for shard in shards_of(table).values()]
    assert sum(sizes) == 16 * 12 * 20
    assert max(sizes) / np.mean(sizes) <= 1.1


def test_streams_that_begin_together_are_dealt_evenly(servers: list[ServerProcess], reach: Reach) -> None:
    table = make(reach(servers), capacity=300_000)
    writers = [table.writer(streams=16) for _ in range(4)]
    for number in range(30):  # all streams are in their first episode
        for writer in writers:
            writer.append_all(number=np.full(16, number), obs=np.zeros((16, 3)))
    for writer in writers:
        writer.close()
    sizes = [shard.size() for shard in shards_of(table).values()]
    assert sum(sizes) == 64 * 30
    assert max(sizes) / np.mean(sizes) <= 1.1


def test_episodes_go_to_the_emptier_of_two_shards(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers)
    shards_of(make(client))[1].insert(rows(np.arange(200)))
    table = client.table("t")
    with table.writer(streams=2) as writer:
        for number in range(20):
            writer.append_all(number=[number, number], obs=np.zeros((2, 3)))
            writer.end_episodes([True, True])
    keys = table.insert(rows(np.arange(50)))
    assert 1 not in shard_ids(keys)
    sizes = [shard.size() for shard in shards_of(table).values()]
    assert sizes[1] == 200
    assert sum(sizes) == 290


def test_episodes_of_steps_stay_whole(servers: list[ServerProcess], reach: Reach) -> None:
    columns = {"obs": Column("int64"), "next_obs": Next("obs")}
    table = make(reach(servers), columns=columns, steps=Transitions(1))
    with table.writer(streams=6) as writer:
        for episode in range(10):
            for step in range(4):
                writer.append_all(obs=np.arange(6) * 1000 + episode * 100 + step)
            done = np.arange(6) % 2 == episode % 2
            finals = np.arange(6) * 1000 + episode * 100 + 4
            writer.end_episodes(done, obs=finals, terminated=done)
            for stream in np.flatnonzero(~done).tolist():
                writer[stream].end_episode(obs=finals[stream])
    batch = table.sample(512, beta=0.4)
    assert (batch["next_obs"] == batch["obs"] + 1).all()
    assert batch.drawable == 240
    assert len(set(batch["obs"].tolist())) > 150
    assert len(np.unique(shard_ids(batch.row_keys))) == 3


def test_servers_are_added_and_drained(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers[:2])
    make(client).insert(rows(np.arange(10)))
    client.shards.set([server.address for server in servers])
    client.shards.mark(0, state="draining")
    table = reach(servers[2:]).table("t")
    assert set(shard_ids(table.insert(rows(np.arange(100)))).tolist()) <= {1, 2}
    batch = table.sample(64, beta=0.4)
    assert batch.table_size == 110
    shards = client.shards.mark(1, state="lost")
    assert [shard.state for shard in shards.shards] == ["draining", "lost", "active"]
    assert set(shard_ids(reach(servers[:1]).table("t").sample(64, beta=0.4).row_keys).tolist()) <= {0, 2}
    servers[1].kill()
    servers[1].restart()
    assert client.shards.set([server.address for server in servers]).shards[-1].id == 3
    with pytest.raises(InvalidArgumentError, match="shards lost"):
        client.shards.set([servers[0].address])


def test_mixed_batches_and_tensors_take_tables_on_several_servers(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers)
    make(client).insert(rows(np.arange(30)))
    other = client.create_table("other", columns=COLUMNS, capacity=1000)
    for shard in shards_of(other).values():
        shard.insert(rows(np.arange(30) + 100))
    with client.mixed_sampler({"t": 8, "other": 24}, beta=0.4) as mixed:
        for _ in range(5):
            batch = next(mixed)
            assert batch.parts["t"]["number"].max() < 30
            assert batch.parts["other"]["number"].min() >= 100
            mixed.update_priorities(batch, np.arange(32) + 1.0)
        mixed.flush()
        assert mixed.stale == 0
    with other.sampler(16, beta=0.4, device="cpu") as sampler:
        tensors = next(sampler)
        assert tensors["number"].min() >= 100
        sampler.update_priorities(tensors, tensors["number"])
        sampler.flush()


def test_a_server_that_was_away_gets_the_map_later(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers[:2])
    make(client)
    stopped = psutil.Process(servers[1].pid)
    stopped.suspend()
    try:
        with ReplayClient(servers[0].address, wait_for_server_s=1.0, timeout_s=2.0) as other:
            assert other.shards.mark(0, state="draining").version == 2
    finally:
        stopped.resume()
    assert make(client).describe().capacity == 1000
    with ReplayClient(servers[1].address) as last:
        shards = last.shards.map()
    assert shards is not None
    assert [shard.state for shard in shards.shards] == ["draining", "active"]


def test_the_command_shows_and_changes_the_servers(servers: list[ServerProcess], reach: Reach) -> None:
    addresses = [server.address for server in servers]
    assert "no other servers" in run("shards", "show", "-s", addresses[0]).stdout
    assert run("shards", "set", ",".join(addresses[:2])).returncode == 0
    assert run("shards", "set", ",".join(addresses)).returncode == 0
    assert run("shards", "drain", "1", "-s", addresses[2]).returncode == 0
    assert run("shards", "lost", "0", "-s", addresses[2]).returncode == 0
    shown = json.loads(run("shards", "show", "-s", addresses[1], "--json").stdout)
    assert shown["version"] == 4
    assert [shard["state"] for shard in shown["shards"]] == ["lost", "draining", "active"]
    table = run("shards", "show", "-s", addresses[1]).stdout
    assert f"1  {addresses[1]}" in table
    assert run("shards", "lost", "0", "-s", addresses[1]).returncode == 1
    assert make(reach(servers[2:])).describe().capacity == 1000


def test_a_server_without_others_is_used_without_any_of_this(servers: list[ServerProcess], reach: Reach) -> None:
    table = make(reach(servers[:1]))
    with table.writer() as writer, table.sampler(8, beta=0.4) as sampler:
        assert (type(table), type(writer), type(sampler)) == (Table, Writer, Sampler)


def test_asking_for_a_table_agrees_with_opening_it_and_creates_nothing(
    servers: list[ServerProcess], reach: Reach
) -> None:
    client = reach(servers)
    assert "t" not in client
    assert client.shards.map() is None
    table = client.create_table("t", columns=COLUMNS, capacity=300)
    shards_of(table)[1].drop()
    for each in (client, reach(servers[1:2])):
        assert "t" in each
        assert not any(found.name == "t" for found in ReplayClient(servers[1].address)._run(list_tables())[0])
    reach(servers[1:2])["t"].drop()
    assert "t" not in reach(servers[1:2])


def test_a_sharded_writer_has_all_that_a_writer_has(servers: list[ServerProcess], reach: Reach) -> None:
    table = reach(servers).create_table("t", columns=COLUMNS, capacity=300)
    with table.writer() as writer, table.sampler(4, beta=0.4, timeout_s=math.inf) as sampler:
        table.insert({"number": np.arange(30), "obs": np.zeros((30, 3))})
        for each in (writer, writer[0], sampler, table):
            for name in dir(each):
                if not name.startswith("_"):
                    getattr(each, name)  # raises no AttributeError
        assert not writer.is_table_gone
        writer.append(number=0, obs=np.zeros(3))
        writer.flush()
        assert writer.shards_version == 1


def test_blanks_around_addresses_do_not_matter(servers: list[ServerProcess]) -> None:
    addresses = [server.address for server in servers]
    with ReplayClient(" , ".join(addresses)) as client:
        assert client.address == ",".join(addresses)
