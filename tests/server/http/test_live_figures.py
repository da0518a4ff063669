"""The events of the live page tell the same as Stats, over every data path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from replay_proto.v1 import replay_pb2
from replay_proto.waits import wait_sentence

from tests.support.caller import Caller, LearnStream, WriteStream, make_draw, make_update, wire_only
from tests.support.deadlines import wait_until
from tests.support.events import events
from tests.support.flow import rate_limiter, wait_for_waiting
from tests.support.http_port import FLAGS, get
from tests.support.server_process import ServerProcess

ALL_DATA_PATHS = True
WRITER = b"0123456789abcdef"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with an HTTP port and checkpoints, shared by this module."""
    folder = tmp_path_factory.mktemp("seen")
    flags = ("--memory-dir", str(folder), "--checkpoint-dir", str(folder / "checkpoints"))
    process = ServerProcess(folder / "log", *flags, *FLAGS, forked=True)
    yield process
    process.kill()


@pytest.fixture
def caller(seen: ServerProcess, call: Callable[[ServerProcess], Caller]) -> Caller:
    """A caller over the data path of the test."""
    return call(seen)


def of_table(server: ServerProcess, name: str) -> dict[str, Any]:
    """A table's figures in an event."""
    with events(server) as stream:
        return stream.table(name)


def test_figures_equal_stats(caller: Caller, seen: ServerProcess) -> None:
    table = caller.create(capacity=50)
    table.insert(range(60))
    table.sample(17)
    stream = LearnStream(table)
    stream.ask(draw=make_draw(7), batches=3, update=make_update([0, 59, 58, 57], [0.0, 1.0, 20.0, 300.0]))
    stream.close()
    figures, stats = of_table(seen, table.name), table.stats()
    assert {name: figures[name] for name in ("rows", "capacity", "inserted", "drawn", "updated", "stale", "bytes")} == {
        "rows": 50,
        "capacity": 50,
        "inserted": 60,
        "drawn": stats.sampled,
        "updated": stats.updated,
        "stale": stats.stale,
        "bytes": stats.bytes,
    }
    assert figures["inserted_per_s"] == pytest.approx(stats.rates.inserted_per_s, rel=0.5)
    quantiles = {quantile.fraction: quantile.value for quantile in stats.priorities}
    priorities = figures["priorities"]
    assert [priorities[name] for name in ("least", "median", "most")] == [
        pytest.approx(quantiles[fraction], rel=1e-5) for fraction in (0.0, 0.5, 1.0)
    ]
    assert sum(priorities["fractions"]) == pytest.approx(1.0, abs=1e-4)
    assert figures["ages_s"]["median"] >= 0
    assert (figures["limiter"], figures["steps"], figures["waits"]) == (None, None, [])


def test_calls_equal_stats(caller: Caller, seen: ServerProcess) -> None:
    table = caller.create()
    table.insert(range(5))
    for _ in range(5):
        table.sample(2)
    with events(seen) as stream:
        shown = {method["name"]: method for method in stream.next()["methods"]}["Sample"]
    stats = {method.method: method for method in caller.server_stats().methods}["Sample"]
    assert (shown["calls"], shown["errors"]) == (stats.calls, stats.errors)
    assert shown["p50_ms"] == pytest.approx(stats.p50_ms, rel=1e-4)
    assert shown["p99_ms"] == pytest.approx(stats.p99_ms, rel=1e-4)


def test_open_streams_are_counted_by_client(caller: Caller, seen: ServerProcess) -> None:
    table = caller.create()
    writers = [WriteStream(table, bytes([number]) * 16) for number in range(2)]
    for writer in writers:
        writer.write([1, 2, 3], 1)
    learner = LearnStream(table)
    learner.ask(draw=make_draw(8), update=make_update([0, 1], [1.0, 2.0]))
    figures = of_table(seen, table.name)
    shown = {client["role"]: client for client in figures["clients"]}
    assert {role: (client["caller"], client["streams"]) for role, client in shown.items()} == {
        "writer": ("this host", 2),
        "learner": ("this host", 1),
    }
    assert all(client["rows_per_s"] > 0 for client in shown.values())
    assert shown["learner"]["rows_per_s"] == pytest.approx(4 * shown["learner"]["updates_per_s"], rel=1e-4)
    assert (shown["writer"]["updates_per_s"], figures["other_clients"]) == (0, 0)
    streams: list[WriteStream | LearnStream] = [*writers, learner]
    for stream in streams:
        stream.close()
        with pytest.raises(StopIteration):
            stream.receive()
    wait_until(lambda: of_table(seen, table.name)["clients"] == [], "all streams have ended")


def test_a_repeated_insert_does_not_count_again_for_its_client(caller: Caller, seen: ServerProcess) -> None:
    table = caller.create()
    table.insert([1, 2, 3], writer_id=WRITER, sequence=1)
    writer = WriteStream(table, WRITER)
    writer.write([1, 2, 3], 1)
    (client,) = of_table(seen, table.name)["clients"]
    assert (client["role"], client["rows_per_s"], table.stats().repeated_inserts) == ("writer", 0, 1)
    writer.write([4], 2)
    (client,) = of_table(seen, table.name)["clients"]
    assert client["rows_per_s"] > 0


@wire_only
def test_a_stream_counts_for_the_table_that_replaces_its_own(caller: Caller, seen: ServerProcess) -> None:
    table = caller.create()
    table.insert([1])
    stream = LearnStream(table)
    stream.ask(draw=make_draw(1))
    table.drop()
    again = caller.create(table.name)
    assert of_table(seen, again.name)["clients"] == []
    stream.close()


@wire_only
def test_a_wait_is_the_sentence_of_stats(caller: Caller, seen: ServerProcess) -> None:
    table = caller.create(rate_limiter=rate_limiter(3, 2.0, (2.0, 14.0)))
    started = table.begin_sample(1, wait_s=60.0)
    wait_for_waiting(table, 1)
    figures = of_table(seen, table.name)
    expected = wait_sentence("rows", 1, 0, 3, 0.0, None)
    assert [sentence.partition(" (")[0] for sentence in figures["waits"]] == [expected]
    assert figures["limiter"] == {"difference": 0.0, "least": 2.0, "most": 14.0}
    table.insert(range(3))
    started.result()


@wire_only
def test_rates_are_recorded_and_a_dropped_table_disappears(caller: Caller, seen: ServerProcess) -> None:
    table = caller.create()

    def history() -> dict[str, list[float]]:
        reply = get(seen, f"/history?table={table.name}")
        assert reply.headers["content-type"] == "application/json"
        points: dict[str, list[float]] = reply.json()
        return points

    wait_until(lambda: len(history()["at"]) > 0, "a point is recorded")
    table.insert(range(90))
    table.sample(40)
    wait_until(lambda: max(history()["drawn"]) > 0, "the draw is recorded")
    points = history()
    assert max(points["inserted"]) > 0
    assert points["at"] == sorted(points["at"])
    assert {len(column) for column in points.values()} == {len(points["at"])}
    table.drop()
    assert get(seen, f"/history?table={table.name}").status == 404
    with events(seen) as stream:
        assert table.name not in {shown["name"] for shown in stream.next()["tables"]}


@wire_only
def test_servers_that_share_tables_are_named_as_soon_as_the_map_is_known(
    start_server: Callable[..., ServerProcess], call: Callable[[ServerProcess], Caller]
) -> None:
    server = start_server(*FLAGS)
    states = (replay_pb2.SHARD_STATE_ACTIVE, replay_pb2.SHARD_STATE_DRAINING, replay_pb2.SHARD_STATE_LOST)
    shards = [replay_pb2.Shard(id=number, address=f"h{number}:1", state=state) for number, state in enumerate(states)]
    with events(server) as stream:
        assert stream.next()["place"] is None
        shard_map = replay_pb2.ShardMap(uid=bytes(16), version=1, shards=shards)
        call(server).stub.SetShards(replay_pb2.SetShardsRequest(map=shard_map))
        place = next(figures["place"] for figures in stream if figures["place"])
    others = [{"shard": 0, "address": "h0:1"}, {"shard": 1, "address": "h1:1"}]
    assert place == {"shard": None, "servers": 2, "others": others}


@wire_only
def test_checkpoints_are_listed(caller: Caller, seen: ServerProcess) -> None:
    with events(seen) as stream:
        made = caller.checkpoint()
        for figures in stream:
            if figures["checkpoints"]:
                break
    (shown,) = figures["checkpoints"]
    assert (shown["name"], shown["tables"], shown["bytes"]) == (made.name, len(made.tables), made.bytes)


@wire_only
@pytest.mark.parametrize(
    "priorities",
    [
        [0.0] * 5,
        [1.0] * 5,
        [0.0, 1.0],
        [0.0, 1e-300, 1e200],
        [1e200, 1e200 * (1 + 1e-15)],
        [5e-324, 5e-324, 1.0],
        [5e-324, 1e-323],
    ],
    ids=["zeros", "equal", "zero and one", "far apart", "almost equal", "subnormal", "adjacent subnormal"],
)
def test_any_priorities_make_a_histogram(caller: Caller, seen: ServerProcess, priorities: list[float]) -> None:
    table = caller.create(backend="uniform")
    table.insert(range(len(priorities)), priorities=priorities)
    shown = of_table(seen, table.name)["priorities"]
    assert shown["zeros"] + sum(shown["fractions"]) * (1 - shown["zeros"]) == pytest.approx(1.0, abs=1e-3)
    assert (shown["least"], shown["most"]) == (pytest.approx(min(priorities)), pytest.approx(max(priorities)))
