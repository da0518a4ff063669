"""A full disk: inserts fail until there is room, and everything else works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2

from tests.support.caller import CalledTable, Caller, new_name, table_config
from tests.support.refusals import refusal_in, refused
from tests.support.server_process import ServerProcess
from tests.support.small_disk import with_small_disk

LARGE = Schema({"value": Column("int64"), "frame": Column("uint8", (1 << 16,))})
DISK_MB = 24


@pytest.fixture(scope="module", params=["--memory-dir", "--data-dir", "--durability=power --data-dir"])
def cramped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """A caller of a server with 24 MB for tables: in memory, or on disk with or without checksums."""
    folder = tmp_path_factory.mktemp("cramped")
    disk = folder / "small"
    server = ServerProcess(folder / "log", *request.param.split(), str(disk), within=with_small_disk(disk, DISK_MB))
    with Caller(server.address) as made:
        yield made
    server.kill()


@pytest.fixture
def caller(cramped: Caller) -> Iterator[Caller]:
    """The same caller, with an empty disk."""
    yield cramped
    for name in cramped.table_names():
        cramped.table(name).drop()


def insert(table: CalledTable, value: int, count: int = 8, **insertion: int) -> replay_pb2.InsertResponse:
    """Insert rows of 64 KB each that all contain ``value``."""
    rows = np.full(count, value, np.int64).tobytes() + bytes([value % 256]) * (count << 16)
    return table.stub.Insert(
        replay_pb2.InsertRequest(
            table=table.name,
            writer_id=b"w" * 16 if insertion else b"",
            insertion=replay_pb2.Insertion(row_count=count, **insertion),  # type: ignore[arg-type]
            rows=rows,
        )
    )


def fill(table: CalledTable, **insertion: int) -> int:
    """Insert until there is no space; return the number of successful inserts."""
    for number in range(1, 10 * DISK_MB):
        try:
            insert(table, number, **({"sequence": number} if insertion else {}))
        except grpc.RpcError as error:
            if refusal_in(error).reason == "NO_SPACE":
                return number - 1
            raise
    raise AssertionError("the disk has no end")


def test_a_small_place_for_tables_in_memory_is_warned_of_with_advice(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    memory = tmp_path / "memory"
    server = start_server("--memory-dir", str(memory), within=with_small_disk(memory, 64))
    server.wait_for_log(f"{memory} has 64 MiB in all")
    server.wait_for_log("--memory-dir or --data-dir")
    server.wait_for_log("--shm-size")


def test_an_insert_without_room_is_refused_and_the_table_goes_on(caller: Caller) -> None:
    table = caller.create(schema=LARGE, capacity=1000)
    answered = fill(table)
    assert answered > 10
    before = table.stats()
    for _ in range(3):
        with refused("NO_SPACE", table=table.name):
            insert(table, 77)
    assert table.stats().table == before.table
    assert table.stats().total_mass == before.total_mass
    keys = table.live_keys()
    assert len(keys) == 8 * answered
    read = caller.stub.Read(replay_pb2.ReadRequest(table=table.name, keys=keys[-1:].tobytes()))
    assert read.rows == np.int64(answered).tobytes() + bytes([answered]) * (1 << 16)
    assert table.update(keys, np.full(len(keys), 2.0)).updated == len(keys)
    drawn = caller.stub.Sample(replay_pb2.SampleRequest(table=table.name, draw=replay_pb2.Draw(batch_size=20)))
    assert len(drawn.rows) == 20 * LARGE.row_bytes


def test_inserts_are_taken_again_once_there_is_room(caller: Caller) -> None:
    other = caller.create(schema=LARGE, capacity=1000)
    for number in range(8):
        insert(other, number)
    table = caller.create(schema=LARGE, capacity=1000)
    answered = fill(table)
    with refused("NO_SPACE"):
        insert(table, 77)
    other.drop()
    assert insert(table, 78).keys[0].first == 8 * answered
    read = caller.stub.Read(replay_pb2.ReadRequest(table=table.name, keys=np.int64(8 * answered).tobytes()))
    assert read.rows == np.int64(78).tobytes() + bytes([78]) * (1 << 16)


def test_a_writer_repeats_what_found_no_room(caller: Caller) -> None:
    other = caller.create(schema=LARGE, capacity=1000)
    insert(other, 1, count=64)
    table = caller.create(schema=LARGE, capacity=1000)
    answered = fill(table, sequence=1)
    for _ in range(2):
        with refused("NO_SPACE"):
            insert(table, 77, sequence=answered + 1)
    other.drop()
    assert insert(table, 77, sequence=answered + 1).keys[0].first == 8 * answered
    assert table.stats().repeated_inserts == 0


def test_a_ring_that_is_reserved_needs_no_more_room(caller: Caller) -> None:
    """Once every slot has been written, inserts succeed on a full disk."""
    table = caller.create(schema=LARGE, capacity=32)
    slots = table.describe().slots
    for number in range(slots // 8 + 1):
        insert(table, number)
    other = caller.create(schema=LARGE, capacity=1000)
    fill(other)
    for number in range(40):
        insert(table, number)
    assert table.describe().size == 32


def test_a_table_without_room_is_not_made(caller: Caller) -> None:
    table = caller.create(schema=LARGE, capacity=1000)
    fill(table)
    for capacity in (10, 10**6, 10**9):
        config = table_config(new_name(), capacity=capacity)
        with refused("NO_SPACE", table=config.name):
            caller.stub.CreateTable(replay_pb2.CreateTableRequest(config=config))
    assert caller.table_names() == [table.name]
    table.drop()
    caller.create(capacity=10).insert(range(5))


def test_a_table_is_not_made_on_a_disk_that_is_full_to_the_last_page(caller: Caller) -> None:
    schema = Schema({"page": Column("uint8", (4096,))})
    large, small = caller.create(schema=LARGE, capacity=1000), caller.create(schema=schema, capacity=100_000)
    fill(large)
    insert_page = replay_pb2.InsertRequest(
        table=small.name, insertion=replay_pb2.Insertion(row_count=1), rows=bytes(4096)
    )
    with refused("NO_SPACE", table=small.name):
        for _ in range(100_000):
            small.stub.Insert(insert_page)
    config = table_config(new_name(), capacity=1)
    with refused("NO_SPACE", table=config.name):
        caller.stub.CreateTable(replay_pb2.CreateTableRequest(config=config))
    assert len(caller.table_names()) == 2
    large.drop()
    caller.create(capacity=10).insert(range(5))


def test_a_table_that_no_disk_can_hold_is_not_made(caller: Caller) -> None:
    for schema, capacity in ((LARGE, 2**40), (Schema({"x": Column("int8", (2**22,))}), 2**40), (LARGE, 10**7)):
        config = table_config(new_name(), capacity=capacity, schema=schema)
        with refused("NO_SPACE", table=config.name):
            caller.stub.CreateTable(replay_pb2.CreateTableRequest(config=config))
    assert caller.table_names() == []
    caller.create(capacity=10).insert(range(5))
