"""What the shard map needs, given what keepers report."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock, call

import pytest
from replay_agent.ray.keeper import KeeperReport
from replay_agent.ray.map_changes import update_map
from replay_client.results.shards import Shard, ShardMap

MAP = ShardMap(b"u" * 16, 3, (Shard(0, "a:1", "lost"), Shard(1, "a:2", "active"), Shard(2, "b:1", "draining")))


def changes(ready: dict[int, KeeperReport], *, empty: set[int], expired: set[int]) -> list[Any]:
    """The calls that update the map and the keepers."""
    made = Mock()
    made.shards.set.return_value = made.shards.move.return_value = made.shards.mark.return_value = MAP
    keepers = {number: getattr(made, f"keeper_{number}") for number in ready}
    assert update_map(MAP, ready, empty, expired, keepers=keepers, operations=made.shards) == MAP
    return made.mock_calls


@pytest.mark.parametrize(
    ("address", "shard_id", "is_empty", "expected"),
    [
        pytest.param("a:2", 1, False, [], id="a known shard at its address stays"),
        pytest.param("a:2", None, False, [call.keeper_0.assign.remote(1)], id="a shard of the first map learns its id"),
        pytest.param(
            "c:1", 1, False, [call.shards.move(1, address="c:1")], id="a shard whose storage moved keeps its id"
        ),
        pytest.param("c:1", None, True, [call.shards.set(["a:2", "b:1", "c:1"])], id="an empty server gets a new id"),
        pytest.param(
            "a:2",
            None,
            True,
            [call.shards.mark(1, state="lost")],
            id="an empty server does not take over the id of its port",
        ),
        pytest.param("a:1", 0, False, [call.keeper_0.renew.remote()], id="a shard that was given up begins empty"),
        pytest.param("b:1", 2, False, [], id="a draining shard stays"),
        pytest.param("c:1", 9, False, [], id="an id that no server knows yet is left alone"),
    ],
)
def test_a_ready_server_gets_its_place(address: str, shard_id: int | None, is_empty: bool, expected: list[Any]) -> None:
    report = KeeperReport(address, shard_id, pid=1, failure=None)
    assert changes({0: report}, empty={0} if is_empty else set(), expired=set()) == expected


def test_a_shard_that_was_away_for_too_long_is_given_up_once() -> None:
    assert changes({}, empty=set(), expired={0, 2}) == [call.shards.mark(2, state="lost")]
