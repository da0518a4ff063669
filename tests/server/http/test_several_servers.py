"""The live page of a server that shares its tables with others says which shard it is, and where the others are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from replay_client import ReplayClient
from replay_proto.v1 import replay_pb2
from replay_server.http.feed import place_of
from replay_server.http.history import Counts, History, Meter

from tests.support.caller import Caller
from tests.support.events import events
from tests.support.server_process import ServerProcess
from tests.support.service import ROWS, addresses, filled, start_service

StartServer = Callable[..., ServerProcess]


@pytest.fixture
def servers(start_server: StartServer) -> list[ServerProcess]:
    return start_service(start_server)


@pytest.fixture
def client(servers: list[ServerProcess]) -> Iterator[ReplayClient]:
    with ReplayClient(addresses(servers)) as made:
        yield made


def test_each_server_shows_its_own_rows_and_its_place(servers: list[ServerProcess], client: ReplayClient) -> None:
    filled(client)
    for number, server in enumerate(servers):
        with events(server) as stream:
            figures = stream.next()
        assert [(table["name"], table["rows"]) for table in figures["tables"]] == [("t", ROWS[number])]
        others = [{"shard": each, "address": servers[each].address} for each in range(3) if each != number]
        assert figures["place"] == {"shard": number, "servers": 3, "others": others}


def shards(*addresses: str) -> replay_pb2.ShardMap:
    found = [
        replay_pb2.Shard(id=number, address=each, state=replay_pb2.SHARD_STATE_ACTIVE)
        for number, each in enumerate(addresses)
    ]
    return replay_pb2.ShardMap(version=1, shards=found)


@pytest.mark.parametrize(
    ("addresses", "shard"),
    [
        (["elsewhere:50051", "localhost:50051"], 1),
        (["[::1]:50051", "elsewhere:50051"], 0),
        (["localhost:50052", "elsewhere:50051"], None),
        (["localhost:50051", "127.0.0.1:50051"], None),
    ],
)
def test_a_server_finds_its_address_in_the_map(addresses: list[str], shard: int | None) -> None:
    """If none is its own, or several seem to be, it does not guess."""
    place = place_of(shards(*addresses), 50051)
    assert place is not None
    assert place["shard"] == shard
    assert [each["shard"] for each in place["others"]] == [each for each in (0, 1) if each != shard]


def test_shards_that_are_lost_are_no_servers() -> None:
    lost = shards("localhost:50051", "elsewhere:50051")
    lost.shards[1].state = replay_pb2.SHARD_STATE_LOST
    assert place_of(lost, 50051) is None
    assert place_of(None, 50051) is None


def test_quantiles_are_those_of_all_rows(caller: Caller) -> None:
    table = caller.create()
    table.insert(range(5), priorities=[1.0, 2.0, 3.0, 4.0, 5.0])
    (stats,) = caller.stub.Stats(replay_pb2.StatsRequest(table=table.name)).tables
    values = {each.fraction: each.value for each in stats.priorities}
    assert (values[0.0], values[0.25], values[0.5], values[1.0]) == (1.0, 2.0, 3.0, 5.0)
    assert [each.fraction for each in stats.ages_s] == list(values)
    table.drop()


def test_a_restart_is_no_rate() -> None:
    now = iter([0.0, 1.0, 3.0, 4.0, 5.0])
    meter = Meter(lambda: next(now))
    assert meter.rates({b"a": Counts(10, 0, 0)}) == {}
    assert meter.rates({b"a": Counts(30, 4, 2), b"b": Counts(1, 1, 1)}) == {b"a": Counts(10, 2, 1)}
    assert meter.rates({b"a": Counts(30, 0, 0), b"b": Counts(1, 1, 1)}) == {b"b": Counts(0, 0, 0)}
    assert meter.rates({b"a": Counts(31, 0, 0)}) == {b"a": Counts(1, 0, 0)}
    history = History(now=lambda: 7.0)
    history.tick({b"a": None, b"b": Counts(1, 2, 3)})
    assert history.points(b"a")["at"] == []
    assert history.points(b"b") == {"at": [7.0], "inserted": [1.0], "drawn": [2.0], "updated": [3.0]}
