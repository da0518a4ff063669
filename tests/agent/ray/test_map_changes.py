"""What the shard map needs, given what keepers report."""

from __future__ import annotations

import pytest
from replay_agent.ray.map_changes import Add, Assign, Change, Lose, Move, Renew, Seen, changes
from replay_client.results.shards import Shard, ShardMap

MAP = ShardMap(b"u" * 16, 3, (Shard(0, "a:1", "lost"), Shard(1, "a:2", "active"), Shard(2, "b:1", "draining")))


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(Seen(0, "a:2", 1, False), [], id="a known shard at its address stays"),
        pytest.param(Seen(0, "a:2", None, False), [Assign(0, 1)], id="a shard of the first map learns its id"),
        pytest.param(Seen(0, "c:1", 1, False), [Move(1, "c:1")], id="a shard whose storage moved keeps its id"),
        pytest.param(Seen(0, "c:1", None, True), [Add("c:1")], id="an empty server gets a new id"),
        pytest.param(Seen(0, "a:2", None, True), [Lose(1)], id="an empty server does not take over the id of its port"),
        pytest.param(Seen(0, "a:1", 0, False), [Renew(0)], id="a shard that was given up begins empty"),
        pytest.param(Seen(0, "b:1", 2, False), [], id="a draining shard stays"),
        pytest.param(Seen(0, "c:1", 9, False), [], id="an id that no server knows yet is left alone"),
    ],
)
def test_a_ready_server_gets_its_place(seen: Seen, expected: list[Change]) -> None:
    assert list(changes(MAP, [seen], [])) == expected


def test_a_shard_that_was_away_for_too_long_is_given_up_once() -> None:
    assert list(changes(MAP, [], [0, 2])) == [Lose(2)]
