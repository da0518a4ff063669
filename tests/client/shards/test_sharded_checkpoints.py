"""Checkpoints of several servers: one name, a part on each, restored together."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from replay_client import CheckpointNotFoundError, InvalidArgumentError, ReplayClient, ServerUnavailableError, aio

from tests.client.shards.conftest import COLUMNS
from tests.client.shards.test_sharded_draws import rows
from tests.client.test_cli import run
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]
Start = Callable[..., ServerProcess]


@pytest.fixture
def copied(start_server: Start, tmp_path: Path) -> list[ServerProcess]:
    """Three servers that can write checkpoints, in the order of their shards."""
    started = [start_server("--checkpoint-dir", str(tmp_path / str(number))) for number in range(3)]
    return sorted(started, key=lambda server: server.address)


def test_all_parts_are_written_listed_verified_and_restored(
    copied: list[ServerProcess], reach: Reach, start_server: Start
) -> None:
    with ReplayClient(copied[1].address) as alone:
        alone.checkpoint()  # so that the next numbers differ
    client = reach(copied)
    table = client.create_table("t", columns=COLUMNS, capacity=3000)
    keys = np.concatenate([table.insert(rows(np.arange(40)), priorities=np.arange(40.0)) for _ in range(9)])
    made = reach(copied[:1]).checkpoint()
    assert (made.name, list(made.parts), made.missing) == ("checkpoint-000002", [0, 1, 2], ())
    assert made.tables["t"].size == 360
    assert made.shards == client.shards.map()
    assert [each.name for each in client.checkpoints()] == ["checkpoint-000001", "checkpoint-000002"]
    shown = run("checkpoint", "create", "-s", copied[2].address).stdout
    assert "checkpoint-000003" in shown
    assert "parts of 3 servers" in shown
    before = table.read(keys)
    for server in copied:
        server.kill()
    flags = [("--restore", made.parts[number].directory) for number in range(3)]
    again = [start_server(*flags[number], port=copied[number].port) for number in (0, 1)]
    empty = start_server(port=copied[2].port)
    with pytest.raises(InvalidArgumentError, match="shard 2"):  # it has not got its part
        reach(again).table("t").sample(4, beta=0.4)
    empty.kill()
    again.append(start_server(*flags[2], port=copied[2].port))
    after = reach(again[1:]).table("t").read(keys)
    assert (after.row_keys == before.row_keys).all()
    assert (after.priorities == before.priorities).all()


def test_the_first_call_of_a_service_may_be_a_checkpoint(copied: list[ServerProcess], reach: Reach) -> None:
    client = reach(copied)
    made = client.checkpoint()
    assert list(made.parts) == [0, 1, 2]
    assert made.shards == client.shards.map() is not None
    assert [each.name for each in client.checkpoints()] == [made.name]


def test_a_missing_part_is_refused_unless_that_is_wanted(copied: list[ServerProcess], reach: Reach) -> None:
    client = reach(copied)
    client.create_table("t", columns=COLUMNS, capacity=3000).insert(rows(np.arange(9)))
    made = client.checkpoint()
    assert client.verify_checkpoint(made.name).parts == made.parts
    (manifest,) = Path(made.parts[1].directory).glob("*.json")
    manifest.write_bytes(b"x")
    (found,) = client.checkpoints()
    assert str(manifest) in found.damage
    assert (found.taken_s, found.missing) == (min(made.parts[each].taken_s for each in (0, 2)), ())
    shutil.rmtree(made.parts[1].directory)
    assert client.checkpoints()[0].missing == (1,)
    with pytest.raises(CheckpointNotFoundError, match=f"1 at {copied[1].address}"):
        client.verify_checkpoint(made.name)
    assert client.verify_checkpoint(made.name, partial=True).missing == (1,)
    assert run("checkpoint", "verify", made.name, "-s", copied[0].address).returncode == 1
    assert "whole" in run("checkpoint", "verify", made.name, "--partial", "-s", copied[0].address).stdout
    assert "lacks shards 1" in run("checkpoint", "list", "-s", copied[0].address).stdout
    assert json.loads(run("checkpoint", "list", "--json", "-s", copied[0].address).stdout)[0]["missing"] == [1]
    with pytest.raises(CheckpointNotFoundError, match="absent-000001"):
        client.verify_checkpoint("absent-000001")
    copied[2].kill()
    with pytest.raises(ServerUnavailableError, match=f"shard 2 at {copied[2].address}"):
        reach(copied[:1], timeout_s=1.0).checkpoint()


def test_a_client_for_asyncio_does_not_take_a_part_for_the_whole(copied: list[ServerProcess], reach: Reach) -> None:
    client = reach(copied)
    client.create_table("t", columns=COLUMNS, capacity=300)
    name = client.checkpoint().name

    async def ask() -> None:
        async with aio.ReplayClient(copied[0].address) as awaited:
            with pytest.raises(InvalidArgumentError, match="one server"):
                await awaited.checkpoints()
            with pytest.raises(InvalidArgumentError, match="one server"):
                await awaited.verify_checkpoint(name)

    asyncio.run(ask())
