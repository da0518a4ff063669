"""All rows of tables on several servers: read, exported, loaded, inspected and removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from replay_client import (
    Column,
    Inspection,
    InvalidArgumentError,
    Next,
    ReplayClient,
    Sequences,
    ServerUnavailableError,
    ShardedTable,
    Table,
    Transitions,
    UpdateResult,
)
from replay_client._shards.keys import shard_ids
from replay_client.cli import export_import

from tests.client.shards.conftest import COLUMNS, shards_of
from tests.client.shards.test_sharded_draws import rows
from tests.client.test_cli import run
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]
STEPS: dict[str, Any] = {"columns": {"obs": Column("int64"), "next_obs": Next("obs")}, "steps": Transitions(1)}


def of_steps(client: ReplayClient) -> Table:
    """A table with 24 episodes of 5 steps each, whose priorities are their observations."""
    table = client.create_table("steps", capacity=3000, **STEPS)
    with table.writer(streams=6) as writer:
        for episode in range(4):
            for step in range(5):
                writer.append_all(obs=np.arange(6) * 1000 + episode * 100 + step)
            everywhere = np.ones(6, bool)
            writer.end_episodes(everywhere, obs=np.arange(6) * 1000 + episode * 100 + 5, terminated=everywhere)
    for part in table.rows():
        table.update_priorities(part.row_keys, part["obs"] + 1.0)
    return table


def contents(table: Table) -> dict[int, float]:
    """Observations and priorities of all rows that can be drawn."""
    batch = table.sample(4000, beta=0.0)
    assert (batch["next_obs"] == batch["obs"] + 1).all()
    parts = list(table.rows())
    known = {int(obs): priority for part in parts for obs, priority in zip(part["obs"], part.priorities, strict=True)}
    return {obs: priority for obs, priority in known.items() if not np.isnan(priority)}


def test_all_rows_are_read_in_chunks(servers: list[ServerProcess], reach: Reach) -> None:
    table = reach(servers).create_table("t", columns=COLUMNS, capacity=300)
    for shard in shards_of(table).values():
        shard.insert(rows(np.arange(130)))  # 30 of them are evicted
    reader = table.rows(chunk=40)
    parts = list(reader)
    keys = np.concatenate([part.row_keys for part in parts])
    assert (reader.total, reader.inserted, reader.overtaken) == (300, 390, 0)
    assert max(part.batch_size for part in parts) == 40
    assert np.bincount(shard_ids(keys)).tolist() == [100, 100, 100]
    assert (np.diff(keys) > 0).all()
    assert sorted(np.concatenate([part["number"] for part in parts]).tolist()) == sorted([*range(30, 130)] * 3)


def test_episodes_come_whole_with_the_keys_of_the_whole_table(servers: list[ServerProcess], reach: Reach) -> None:
    table = of_steps(reach(servers))
    episodes = list(table.episodes(chunk=7))
    expected = [
        [stream * 1000 + number * 100 + step for step in range(6)] for stream in range(6) for number in range(4)
    ]
    assert sorted(each["obs"].tolist() for each in episodes) == sorted(expected)
    assert len(np.unique(shard_ids(np.concatenate([each.row_keys for each in episodes])))) > 1
    for each in episodes:
        again = table.episode(each.row_keys[2])
        assert (again["obs"].tolist(), again.row_keys.tolist()) == (each["obs"].tolist(), each.row_keys.tolist())
    assert table.episode(77 << 48).batch_size == 0


def test_a_file_has_all_rows_and_can_be_loaded_anywhere(
    servers: list[ServerProcess], reach: Reach, start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    client, alone = reach(servers), reach([start_server()])
    source = of_steps(client)
    known = contents(source)
    path = tmp_path / "steps.parquet"
    assert source.to_parquet(path, order="episode").rows == len(source) == 144
    one = alone.load_parquet(path)
    assert contents(one) == pytest.approx(known)
    assert one.capacity == 3000
    one.to_parquet(path)
    several = client.load_parquet(path, name="copy")
    assert isinstance(several, ShardedTable)
    assert contents(several) == pytest.approx(known)
    assert min(shard.size() for shard in several.shards.values()) >= 24
    whole = pq.read_table(path)
    assert source.load_parquet(path, priorities=False).rows == whole.num_rows
    with pytest.raises(InvalidArgumentError, match="keys"):
        source.load_parquet(path, keys=True)
    with pytest.raises(InvalidArgumentError, match="keys"):
        client.load_parquet(path, name="x", keys=True)
    assert "x" not in client


def test_rows_without_steps_are_spread(servers: list[ServerProcess], reach: Reach, tmp_path: Path) -> None:
    table = reach(servers).create_table("t", columns=COLUMNS, capacity=9000)
    shards_of(table)[0].insert(rows(np.arange(3000)), priorities=np.arange(3000.0))
    path = tmp_path / "t.parquet"
    table.to_parquet(path)
    table.reset()
    assert len(table) == 0
    loaded = table.load_parquet(path)
    assert loaded.rows == len(table) == 3000
    assert shard_ids(np.array([loaded.first_key]))[0] in (0, 1, 2)
    sizes = [shard.size() for shard in shards_of(table).values()]
    assert max(sizes) - min(sizes) <= 256
    numbers, priorities = zip(*[(part["number"], part.priorities) for part in table.rows()], strict=True)
    assert (np.concatenate(numbers) == np.concatenate(priorities)).all()


def test_the_commands_take_the_whole_table(servers: list[ServerProcess], reach: Reach, tmp_path: Path) -> None:
    of_steps(reach(servers))
    address = servers[1].address
    assert "wrote 144 rows" in run("export", "steps", str(tmp_path), "-s", address).stdout
    assert run("import", str(tmp_path / "steps.parquet"), "copy", "-s", address).stdout.startswith("inserted 144 rows")
    seen = json.loads(run("inspect", "copy", "-s", address, "--json", "--rows", "3").stdout)
    assert [row["priority"] for row in seen["largest"]] == [5305.0, 5304.0, 5303.0]
    assert [int(row["columns"]["obs"]) for row in seen["largest"]] == [5304, 5303, 5302]
    assert "by shard" in run("inspect", "copy", "-s", address).stdout
    assert "removed 144 rows" in run("reset", "copy", "--yes", "-s", address).stdout
    assert "dropped" in run("drop", "copy", "--yes", "-s", address).stdout
    assert reach(servers).tables()[0].name == "steps"


@pytest.mark.parametrize("what", ["parquet", "minari"])
def test_nothing_is_exported_while_a_server_is_away(
    servers: list[ServerProcess], reach: Reach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: Any
) -> None:
    if what == "minari":
        pytest.importorskip("minari")
    columns = dict.fromkeys(("obs", "action", "reward"), Column("float32"))
    reach(servers).create_table("t", columns=columns, capacity=3000, steps=Transitions(1))
    servers[1].kill()
    monkeypatch.setattr(export_import, "COPY_TIMEOUT_S", 2.0)
    with pytest.raises(ServerUnavailableError, match=f"shard 1 at {servers[1].address}"):
        export_import.export("t", tmp_path / "exported", server=servers[0].address, what=what)
    assert not (tmp_path / "exported").exists()


def test_all_rows_are_read_only_with_all_servers(servers: list[ServerProcess], reach: Reach, tmp_path: Path) -> None:
    of_steps(reach(servers))
    servers[1].kill()
    table = reach(servers[:1], timeout_s=2.0)["steps"]  # opened without that server
    path = tmp_path / "steps.parquet"
    for read in (table.rows, table.episodes, table.to_arrow, lambda: table.to_parquet(path)):
        with pytest.raises(ServerUnavailableError, match=f"shard 1 at {servers[1].address}"):
            read()
    assert not path.exists()


@pytest.mark.parametrize("backend", ["sum_tree", "uniform"])
def test_the_distribution_is_that_of_one_table(
    servers: list[ServerProcess], reach: Reach, start_server: Callable[..., ServerProcess], backend: str
) -> None:
    counts, random = (2000, 700, 300), np.random.default_rng(1)
    priorities = random.exponential(1.0, 3000)
    alone = reach([start_server()]).create_table("t", columns=COLUMNS, capacity=3000, backend=backend)
    alone.insert(rows(np.arange(3000)), priorities=priorities)
    table = reach(servers).create_table("t", columns=COLUMNS, capacity=9000, backend=backend)
    parts = np.split(np.arange(3000), np.cumsum(counts)[:-1])
    for shard, part in zip(shards_of(table).values(), parts, strict=True):
        shard.insert(rows(part), priorities=priorities[part])
    whole, expected = table.inspect(largest=20), alone.inspect(largest=20)
    assert_alike(whole, expected)
    read = table.read(whole.largest.row_keys)
    assert priorities[read["number"]].tolist() == whole.largest.priorities.tolist()
    assert not whole.is_exact
    servers[2].kill()
    left = reach(servers[:1], timeout_s=2.0).table("t").inspect()
    assert left.shards_away == (2,)


def assert_alike(found: Inspection, expected: Inspection) -> None:
    """Compare a merged distribution with that of one table."""
    assert found.looked_at == expected.looked_at
    np.testing.assert_array_equal(found.largest.priorities, expected.largest.priorities)
    np.testing.assert_allclose(found.largest.probabilities, expected.largest.probabilities)
    assert (found.probabilities * found.rows).sum() == pytest.approx(1.0, rel=0.02)
    near = np.interp(expected.ranks, found.ranks, found.priorities)
    assert np.abs(near - expected.priorities).max() <= 0.05
    assert found.rows.sum() == pytest.approx(expected.rows.sum())
    assert [(bar.at_least, bar.rows) for bar in found.times_sampled] == [
        (bar.at_least, bar.rows) for bar in expected.times_sampled
    ]


@pytest.mark.parametrize("device", [None, "cpu"])
def test_mutable_columns_are_written_in_the_shards_of_the_rows(
    servers: list[ServerProcess], reach: Reach, device: str | None
) -> None:
    columns = {"obs": Column("int64"), "value": Column("int64", mutable=True)}
    table = reach(servers).create_table("t", columns=columns, capacity=3000, steps=Sequences(length=3, burn_in=1))
    with table.writer(streams=6) as writer:
        for _ in range(4):
            for step in range(5):
                writer.append_all(obs=np.arange(6) * 10 + step, value=np.zeros(6, np.int64))
            writer.end_episodes(np.ones(6, bool), obs=np.full(6, -1))
    options: Any = {} if device is None else {"device": device}
    with table.sampler(32, **options) as sampler:
        keys = next(sampler).position_keys
        assert len(set(shard_ids(keys[keys >= 0]).tolist())) == 3
        for update in (table.update, sampler.update):
            update(keys, {"value": np.where(keys < 0, 0, keys)})
            sampler.flush()
            rows = table.read(np.unique(keys[keys >= 0]))
            np.testing.assert_array_equal(rows["value"], rows.row_keys)
            table.update(rows.row_keys, {"value": np.zeros(len(rows.row_keys), np.int64)})
        assert sampler.updated == len(rows.row_keys)
        errors = np.ones((32, 3))
        sampler.update_priorities(next(sampler), torch.ones(32, 3) if device else errors)
        sampler.flush()
    lost = np.array([*keys[0, 1:2], 7 << 48])
    assert table.update(lost, {"value": [1, 2]}) == UpdateResult(updated=1, stale=1)
