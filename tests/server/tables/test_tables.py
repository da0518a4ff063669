"""Creating, finding, describing, listing, resetting and dropping tables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2

from tests.support.caller import CalledTable, Caller, LearnStream, make_draw, new_name, table_config
from tests.support.refusals import refused
from tests.support.rows import WHOLE
from tests.support.server_process import ServerProcess

NewTable = Callable[..., CalledTable]


def test_a_new_table_is_described_with_every_default_filled_in(caller: Caller, new_table: NewTable) -> None:
    table = new_table(capacity=100)
    description = table.describe()
    assert description.config.name == table.name
    assert description.config.columns[:] == WHOLE.to_proto()
    assert description.config.capacity == 100
    assert description.config.backend.name == "sum_tree"
    assert dict(description.config.backend.parameters) == {"alpha": 0.6, "epsilon": 1e-6}
    assert not description.config.HasField("seed")
    assert len(description.uid) == 16
    assert (description.size, description.inserted) == (0, 0)
    assert description.slots == 100 + 64
    assert description.row_bytes == 8 + 12 + 8


def test_every_dtype_and_shape_comes_back_as_it_was_sent(new_table: NewTable) -> None:
    dtypes = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    floats = ("float16", "float32", "float64")
    schema = Schema({f"obs/{dtype}": Column(dtype, (2, 3)) for dtype in dtypes + floats} | {"scalar": Column("bool")})
    table = new_table(schema=schema)
    assert Schema.from_proto(table.describe().config.columns) == schema
    rows = np.random.default_rng(0).integers(0, 2, 5 * schema.row_bytes).astype(np.uint8).tobytes()
    answer = table.stub.Insert(
        replay_pb2.InsertRequest(table=table.name, insertion=replay_pb2.Insertion(row_count=5), rows=rows)
    )
    assert (answer.keys[0].first, answer.keys[0].count) == (0, 5)
    assert table.read(range(5)).rows == rows


def test_a_table_that_is_made_says_so(caller: Caller, new_table: NewTable) -> None:
    config = table_config(new_name())
    answer = caller.stub.CreateTable(replay_pb2.CreateTableRequest(config=config))
    assert answer.created
    caller.table(config.name).drop()


REORDERED = Schema({name: WHOLE[name] for name in ("check", "payload", "value")})


@pytest.mark.parametrize(
    ("change", "field", "expected", "got"),
    [
        ({"capacity": 101}, "capacity", "100", "101"),
        ({"schema": Schema({**WHOLE, "more": Column("bool")})}, "columns.more", "absent", "bool"),
        ({"schema": REORDERED}, "columns", None, None),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_table_of_the_same_name_and_another_config_is_refused_with_the_difference(
    table: CalledTable, change: dict[str, object], field: str, expected: str | None, got: str | None
) -> None:
    table.insert(range(3))
    before = table.state()
    request = replay_pb2.CreateTableRequest(config=table_config(table.name, **change))
    with refused("TABLE_EXISTS", table=table.name, field=field) as refusal:
        table.stub.CreateTable(request)
    if expected is not None:
        assert refusal.metadata["expected"] == expected
        assert refusal.metadata["got"] == got
    assert field in refusal.message
    assert table.state() == before


def test_tables_are_listed_in_the_order_of_their_names(caller: Caller, new_table: NewTable) -> None:
    made = [new_table(f"{letter}-{new_name()}") for letter in "cab"]
    listed = caller.table_names()
    assert listed == sorted(listed)
    assert {table.name for table in made} <= set(listed)
    descriptions = caller.stub.ListTables(replay_pb2.ListTablesRequest()).tables
    assert next(each for each in descriptions if each.config.name == made[0].name) == made[0].describe()


def test_a_dropped_table_is_gone_and_its_name_is_free(new_table: NewTable, caller: Caller) -> None:
    table = new_table()
    table.insert(range(3))
    table.drop()
    assert table.name not in caller.table_names()
    with refused("TABLE_NOT_FOUND", table=table.name):
        table.describe()
    again = new_table(table.name, capacity=7)
    assert again.uid != table.uid
    assert (again.describe().size, again.describe().inserted) == (0, 0)


def test_a_dropped_table_gives_its_files_back_whatever_was_refused_before(
    new_table: NewTable, server: ServerProcess
) -> None:
    """Disk space is freed when the last descriptor is closed; a refusal must not keep one open."""
    table = new_table()
    table.insert(range(5))
    stream = LearnStream(table)
    for _ in range(3):
        table.insert([1])
        with refused("INVALID_FIELD"):
            table.insert(range(5), [-1.0] * 5)
        table.insert([1], writer_id=b"0123456789abcdef", sequence=1)
        with refused("SEQUENCE_GAP"):
            table.insert([1], writer_id=b"0123456789abcdef", sequence=9)
        with refused("TOO_LARGE"):
            table.sample(2**40)
        table.reset()
        with refused("TABLE_EMPTY"):
            table.sample(1)
    stream.send(draw=make_draw(1))
    with refused("TABLE_EMPTY"):
        stream.receive()
    folder = table.describe().directory
    assert any(target.startswith(folder) for target in open_files(server))
    table.drop()
    assert [target for target in open_files(server) if table.uid.hex() in target] == []


def open_files(server: ServerProcess) -> list[str]:
    """Targets of a server's file descriptors."""
    targets = []
    for descriptor in Path(f"/proc/{server.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            targets.append(str(descriptor.readlink()))
    return targets


def test_a_table_that_was_replaced_is_not_dropped_or_reset_by_its_old_uid(new_table: NewTable) -> None:
    old = new_table()
    old.drop()
    new = new_table(old.name)
    new.insert(range(3))
    with refused("TABLE_REPLACED", table=old.name):
        old.drop()
    with refused("TABLE_REPLACED", table=old.name):
        old.reset()
    assert new.describe().size == 3


def test_after_a_reset_keys_go_on_counting(table: CalledTable) -> None:
    assert table.insert(range(10)).tolist() == list(range(10))
    assert table.reset() == 10
    description = table.describe()
    assert (description.size, description.inserted, description.uid) == (0, 10, table.uid)
    assert len(table.read(range(10)).keys) == 0
    assert table.insert(range(3)).tolist() == [10, 11, 12]
    assert table.live_keys().tolist() == [10, 11, 12]
    assert table.stats().evicted == 10


def test_a_reset_of_an_empty_table_removes_nothing(table: CalledTable) -> None:
    assert table.reset() == 0
    table.insert(range(150))
    assert table.reset() == 100
    assert table.reset() == 0


def test_rows_from_before_a_reset_are_stale_and_never_drawn(table: CalledTable) -> None:
    before = table.insert(range(20), np.full(20, 1e6))
    table.reset()
    after = table.insert(range(20, 40))
    result = table.update(before, np.ones(20))
    assert (result.updated, result.stale) == (0, 20)
    assert set(table.sample(500).keys) <= set(after)
