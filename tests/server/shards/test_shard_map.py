"""A server keeps the shard map, and replaces it only for callers that know the current one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from replay_proto.merged_stats import merged_table_stats
from replay_proto.v1 import replay_pb2
from replay_server.storage.ranges import KEYS, LARGEST_MASS, SAMPLED

from tests.support.caller import CALL_TIMEOUT_S, CalledTable, Caller, make_draw, make_update, table_config
from tests.support.refusals import refused
from tests.support.server_process import ServerProcess
from tests.support.small_disk import with_small_disk

StartServer = Callable[..., ServerProcess]
Call = Callable[[ServerProcess], Caller]
ACTIVE, LOST = replay_pb2.SHARD_STATE_ACTIVE, replay_pb2.SHARD_STATE_LOST
UID = b"of this service."
LARGEST = (1 << 63) - 1


def shard(number: int, address: str = "", state: replay_pb2.ShardState.ValueType = ACTIVE) -> replay_pb2.Shard:
    return replay_pb2.Shard(id=number, address=address or f"h{number}:50051", state=state)


def shard_map(version: int, *shards: replay_pb2.Shard, uid: bytes = UID) -> replay_pb2.ShardMap:
    return replay_pb2.ShardMap(uid=uid, version=version, shards=shards or [shard(0), shard(1)])


def replace(caller: Caller, new: replay_pb2.ShardMap, expected: int) -> None:
    caller.stub.SetShards(replay_pb2.SetShardsRequest(map=new, expected_version=expected))


def current(caller: Caller) -> replay_pb2.GetShardsResponse:
    response: replay_pb2.GetShardsResponse = caller.stub.GetShards(replay_pb2.GetShardsRequest())
    return response


def test_a_new_server_has_no_map_and_keeps_the_one_it_is_given(
    start_server: StartServer, call: Call, tmp_path: Path
) -> None:
    flags = ("--data-dir", str(tmp_path / "data"))
    server = start_server(*flags)
    caller = call(server)
    assert not current(caller).HasField("map")
    replace(caller, shard_map(1), 0)
    second = shard_map(2, shard(0), shard(1, state=LOST), shard(2, "h1:50051"))
    second.id, second.ancestors[:] = b"2" * 16, [b"1" * 16]
    replace(caller, second, 1)
    assert current(caller).map == second
    server.kill()
    assert current(call(start_server(*flags))).map == second


def test_without_room_for_a_map_it_is_refused(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    disk = tmp_path / "small"
    # Of 8 MB, five tables leave 94 KB. The map takes 340 KB.
    caller = call(start_server("--data-dir", str(disk), within=with_small_disk(disk, 8)))
    tables = []
    with refused("NO_SPACE"):
        for _ in range(10):
            tables.append(caller.create(capacity=1))
    large = shard_map(1, *(shard(number, f"{number:0250}:50051"[-256:]) for number in range(1000)))
    with refused("NO_SPACE"):
        replace(caller, large, 0)
    assert not current(caller).HasField("map")
    for table in tables:
        table.drop()
    replace(caller, large, 0)
    assert current(caller).map == large


@pytest.fixture
def caller(start_server: StartServer, call: Call) -> Caller:
    return call(start_server())


@pytest.mark.parametrize("expected", [0, 2, 3])
def test_a_map_that_has_changed_meanwhile_is_not_replaced(caller: Caller, expected: int) -> None:
    replace(caller, shard_map(1), 0)
    with refused("SHARDS_CHANGED", current="1", expected=str(expected)):
        replace(caller, shard_map(9), expected)
    assert current(caller).map == shard_map(1)


@pytest.mark.parametrize(
    ("new", "field"),
    [
        (shard_map(1), "map.version"),
        (shard_map(0), "map.version"),
        (shard_map(2, uid=b"of another one.."), "map.uid"),
        (shard_map(2, uid=b"short"), "map.uid"),
        (shard_map(2, shard(-1)), "map.shards[0].id"),
        (shard_map(2, shard(1 << 15)), "map.shards[0].id"),
        (shard_map(2, shard(1), shard(1, "other:1")), "map.shards[1].id"),
        (shard_map(2, shard(1), shard(0)), "map.shards[1].id"),
        (shard_map(2, shard(0, "h:1"), shard(1, "h:1")), "map.shards"),
        (shard_map(2, shard(0, state=replay_pb2.SHARD_STATE_UNSPECIFIED)), "map.shards[0].state"),
        (shard_map(2, shard(0, "x" * 257)), "map.shards[0].address"),
        (replay_pb2.ShardMap(uid=UID, version=2), "map.shards"),
        (replay_pb2.ShardMap(uid=UID, version=2, shards=[shard(0), shard(1)], id=b"short"), "map.id"),
        (replay_pb2.ShardMap(uid=UID, version=2, shards=[shard(0), shard(1)], ancestors=[b""]), "map.ancestors"),
        (replay_pb2.ShardMap(uid=UID, version=2, shards=[shard(0), shard(1)], ancestors=[UID] * 257), "map.ancestors"),
        (shard_map(2, *(shard(number) for number in range(1025))), "map.shards"),
    ],
)
def test_an_invalid_map_is_refused(caller: Caller, new: replay_pb2.ShardMap, field: str) -> None:
    replace(caller, shard_map(1), 0)
    with refused("INVALID_FIELD", field=field):
        replace(caller, new, 1)
    assert current(caller).map == shard_map(1)


def test_a_map_follows_only_one_that_it_was_made_from(caller: Caller) -> None:
    first, second, third = (shard_map(version) for version in (1, 2, 5))
    replace(caller, first, 0)  # an earlier version of the service gave it no id
    second.id = b"b" * 16
    replace(caller, second, 1)
    third.id, third.ancestors[:] = b"d" * 16, [b"c" * 16]
    with refused("INVALID_FIELD", field="map.ancestors"):
        replace(caller, third, 2)
    third.ancestors.append(second.id)
    replace(caller, third, 2)
    assert current(caller).map == third


def test_a_stored_map_without_an_id_stays_readable(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = start_server("--data-dir", str(data))
    replace(call(server), shard_map(1), 0)
    server.terminate()
    stored = json.loads((data / "shards.json").read_text("utf-8"))
    del stored["id"], stored["ancestors"]
    (data / "shards.json").write_text(json.dumps(stored), "utf-8")
    assert current(call(start_server("--data-dir", str(data)))).map == shard_map(1)


def test_a_corrupt_map_is_not_ignored(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    flags = ("--data-dir", str(tmp_path / "data"))
    server = start_server(*flags)
    replace(call(server), shard_map(1), 0)
    server.terminate()
    (tmp_path / "data" / "shards.json").write_text('{"uid": "00"}')
    with pytest.raises(Exception, match=r"shards\.json"):
        start_server(*flags)


def test_clients_hear_of_the_map_where_they_open_tables_and_write(caller: Caller) -> None:
    request = replay_pb2.CreateTableRequest(config=table_config("t"))
    caller.stub.CreateTable(request)
    replace(caller, shard_map(1), 0)
    with refused("SHARDS_CHANGED", current="1", expected="0"):
        caller.stub.CreateTable(request)
    request.shards_version = 1
    caller.stub.CreateTable(request)
    assert caller.stub.DescribeTable(replay_pb2.DescribeTableRequest(table="t")).shards == shard_map(1)


@pytest.mark.parametrize("backend", ["rank", "fifo"])
def test_a_shard_of_a_table_that_has_one_order_needs_one_server(caller: Caller, backend: str) -> None:
    alone, shards = table_config("alone", backend=backend), [table_config("t", backend=backend) for _ in range(3)]
    shards[0].whole_capacity, shards[1].whole_uid, shards[2].whole_shards[:] = 100, UID, [0]
    replace(caller, shard_map(1), 0)
    for shard_config in shards:
        with refused("INVALID_FIELD", field="backend") as refusal:
            caller.stub.CreateTable(replay_pb2.CreateTableRequest(config=shard_config, shards_version=1))
        for part in (repr(backend), "on 2 servers", "use one server or 'sum_tree'"):
            assert part in refusal.message
    caller.stub.CreateTable(replay_pb2.CreateTableRequest(config=alone, shards_version=1))
    replace(caller, shard_map(2, shard(0), shard(1, state=LOST)), 1)
    caller.stub.CreateTable(replay_pb2.CreateTableRequest(config=shards[0], shards_version=2))


def test_a_learner_gets_the_state_of_the_table_if_it_asks(caller: Caller) -> None:
    table = caller.create("t", capacity=10, backend="sum_tree", parameters={"alpha": 1.0, "epsilon": 0.0})
    replace(caller, shard_map(1), 0)
    asks = [replay_pb2.LearnRequest(table="t", table_uid=table.uid, wants_state=wants) for wants in (True, False)]
    empty, nothing = caller.stub.Learn(iter(asks))
    assert empty.state == replay_pb2.TableState(shards_version=1)
    assert not nothing.HasField("state")
    table.insert(range(4), [1.0, 2.0, 3.0, 4.0])
    (full,) = caller.stub.Learn(iter(asks[:1]))
    assert full.state == replay_pb2.TableState(
        total_mass=10.0,
        size=4,
        drawable=4,
        inserted=4,
        smallest_probability=0.1,
        largest_priority=4.0,
        shards_version=1,
    )


def test_new_rows_get_the_largest_priority_of_all_shards(caller: Caller) -> None:
    table = caller.create("t", capacity=10)

    def hear(others_largest: float) -> None:
        update = replay_pb2.PriorityUpdate(others_largest=others_largest)
        request = replay_pb2.LearnRequest(table="t", table_uid=table.uid, update=update, draw=make_draw(1))
        list(caller.stub.Learn(iter([request])))

    table.insert([0], [2.0])
    hear(5.0)
    table.insert([1])
    table.update([1], [1.0])
    hear(0.0)
    table.insert([2])
    priorities = caller.stub.Read(replay_pb2.ReadRequest(table="t", keys=bytes(8) + (2).to_bytes(8, "little")))
    assert priorities.priorities == _float64(2.0, 2.0)
    table.update([0, 2], [1.0, 1.0])
    hear(5.0)
    table.insert([3])
    assert caller.stub.Read(replay_pb2.ReadRequest(table="t", keys=(3).to_bytes(8, "little"))).priorities == _float64(5)
    with pytest.raises(grpc.RpcError, match="others_largest"):
        hear(float("inf"))


def test_a_reset_forgets_what_clients_told_of_other_shards(caller: Caller) -> None:
    table = divided_table(caller)
    report(table)
    update = replay_pb2.PriorityUpdate(others_largest=5.0)
    caller.stub.UpdatePriorities(replay_pb2.UpdatePrioritiesRequest(table="t", table_uid=table.uid, update=update))
    table.reset()
    assert not table.stats().reports
    table.insert([0])
    assert table.read([0]).priorities.tolist() == [1.0]


def report(table: CalledTable, **about: Any) -> None:
    """Report on a shard, by default on one of the map, with valid numbers."""
    given = replay_pb2.ShardReport(**{"shard_id": 1, "inserted": 9, "size": 7, "total_mass": 2.5, **about})
    request = replay_pb2.ReportShardRequest(table=table.name, table_uid=table.uid, report=given)
    table.stub.ReportShard(request, timeout=CALL_TIMEOUT_S)


@pytest.mark.parametrize(
    ("field", "about"),
    [
        ("shard_id", {"shard_id": 2}),
        ("shard_id", {"shard_id": -1}),
        ("inserted", {"inserted": LARGEST, "size": 0}),
        ("inserted", {"inserted": -1, "size": -1}),
        ("size", {"size": 10}),
        ("size", {"size": -1}),
        ("size", {"size": 101, "inserted": 200}),
        ("total_mass", {"total_mass": 1e308}),
        ("total_mass", {"total_mass": float("nan")}),
    ],
)
def test_a_report_with_impossible_numbers_is_refused(caller: Caller, field: str, about: dict[str, Any]) -> None:
    table = divided_table(caller)
    with refused("INVALID_FIELD", field=f"report.{field}"):
        report(table, **about)
    assert not table.stats().reports


def test_a_server_without_a_map_keeps_no_reports(caller: Caller) -> None:
    with refused("INVALID_FIELD", field="report.shard_id"):
        report(caller.create("t"))


def test_of_each_shard_the_report_with_the_most_inserts_is_kept(caller: Caller) -> None:
    table = divided_table(caller)
    for inserted in (9, 12, 10):
        report(table, inserted=inserted)
    assert [each.inserted for each in table.stats().reports] == [12]


def test_the_largest_numbers_of_as_many_shards_as_there_can_be_add_up(caller: Caller) -> None:
    table = divided_table(caller)
    report(table, inserted=KEYS.most, size=100, total_mass=LARGEST_MASS)
    stats = table.stats()
    parts = dict.fromkeys(range(1024), stats)
    lost = [replay_pb2.LostRows(table="t", table_uids=[table.uid], size=KEYS.most, inserted=KEYS.most)]
    shards = [replay_pb2.Shard(id=number, state=LOST, lost_rows=lost) for number in range(1024)]
    stats.rate_limiter.sampled = SAMPLED.most
    stats.table.inserted = KEYS.most
    stats.total_mass = LARGEST_MASS
    whole = merged_table_stats(parts, replay_pb2.ShardMap(shards=shards))
    assert whole.rate_limiter.sampled == 1024 * SAMPLED.most
    assert whole.lost == 1024 * KEYS.most
    assert math.isfinite(whole.total_mass)


@pytest.mark.parametrize(
    ("field", "rows"),
    [
        ("inserted", {"inserted": LARGEST}),
        ("inserted", {"inserted": -1}),
        ("size", {"size": 3, "inserted": 2}),
        ("table", {"table": "../t"}),
        ("table_uids", {"table_uids": [b"short"]}),
    ],
)
def test_lost_rows_with_impossible_numbers_are_refused(caller: Caller, field: str, rows: dict[str, Any]) -> None:
    lost = replay_pb2.LostRows(**{"table": "t", "table_uids": [UID], "size": 1, "inserted": 2, **rows})
    gone = replay_pb2.Shard(id=1, address="h1:50051", state=LOST, lost_rows=[lost])
    with refused("INVALID_FIELD", field=f"map.shards[1].lost_rows.{field}"):
        replace(caller, shard_map(1, shard(0), gone), 0)
    assert not current(caller).HasField("map")


def divided_table(caller: Caller) -> CalledTable:
    """A table of a server whose map has the shards 0 and 1."""
    replace(caller, shard_map(1), 0)
    request = replay_pb2.CreateTableRequest(config=table_config("t"), shards_version=1)
    return CalledTable(caller, "t", caller.stub.CreateTable(request).table.uid)


def _float64(*values: float) -> bytes:
    return make_update([0] * len(values), values).priorities
