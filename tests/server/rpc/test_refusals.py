"""Refused requests: their errors, and that they change nothing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2

from tests.support.caller import (
    CalledTable,
    Caller,
    float64,
    int64,
    make_draw,
    make_update,
    new_name,
    table_config,
    wire_only,
)
from tests.support.refusals import Refusal, code_of, refusal_in, refused
from tests.support.rows import rows_of
from tests.support.server_process import ServerProcess
from tests.support.wire import SERVICE

ALL_DATA_PATHS = True

NewTable = Callable[..., CalledTable]
NOT_PRIORITIES = {"NaN": math.nan, "infinity": math.inf, "minus infinity": -math.inf, "negative": -1e-300}
OTHER_UID = b"another table's!"
WRITER = b"0123456789abcdef"


@dataclass(frozen=True)
class Case:
    """A refused request."""

    what: str
    """The mistake in the request."""
    method: str
    """The RPC."""
    request: Callable[[CalledTable], Message]
    """Creates the request for a table with rows."""
    field: str
    """The field that the refusal names."""
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Other text in the refusal."""
    reason: str = "INVALID_FIELD"


def insertion(
    *, count: int = 2, priorities: bytes = b"", sequence: int = 0, writer: bytes = b"", rows: bytes | None = None
) -> Callable[[CalledTable], replay_pb2.InsertRequest]:
    """An insert of two rows with one mistake."""

    def request(table: CalledTable) -> replay_pb2.InsertRequest:
        return replay_pb2.InsertRequest(
            table=table.name,
            table_uid=table.uid,
            writer_id=writer,
            insertion=replay_pb2.Insertion(row_count=count, priorities=priorities, sequence=sequence),
            rows=rows_of(np.arange(2)) if rows is None else rows,
        )

    return request


def sampling(batch_size: int = 4, **draw: object) -> Callable[[CalledTable], replay_pb2.SampleRequest]:
    """A Sample request with one mistake."""
    return lambda table: replay_pb2.SampleRequest(table=table.name, draw=make_draw(batch_size, **draw))


def learning(**fields: object) -> Callable[[CalledTable], replay_pb2.LearnRequest]:
    """A learner's request with one mistake."""
    return lambda table: replay_pb2.LearnRequest(**{"table": table.name, "table_uid": table.uid, **fields})  # type: ignore[arg-type]


def choosing(kind: Callable[..., Message], **fields: object) -> Callable[[CalledTable], Message]:
    """A request that chooses columns."""
    return lambda table: kind(table=table.name, **fields)


def updating(keys: bytes, priorities: bytes) -> Callable[[CalledTable], replay_pb2.UpdatePrioritiesRequest]:
    """An update with one mistake."""
    return lambda table: replay_pb2.UpdatePrioritiesRequest(
        table=table.name, table_uid=table.uid, update=replay_pb2.PriorityUpdate(keys=keys, priorities=priorities)
    )


def learning_update(keys: bytes, priorities: bytes) -> Callable[[CalledTable], replay_pb2.LearnRequest]:
    """The same on a learner's stream."""
    return learning(update=replay_pb2.PriorityUpdate(keys=keys, priorities=priorities), draw=make_draw(4))


def writing(**fields: object) -> Callable[[CalledTable], replay_pb2.WriteRequest]:
    """A message of a writer's stream with one mistake."""

    def request(table: CalledTable) -> replay_pb2.WriteRequest:
        good = {
            "table": table.name,
            "writer_id": WRITER,
            "insertion": replay_pb2.Insertion(row_count=2, sequence=1),
            "rows": rows_of(np.arange(2)),
        }
        return replay_pb2.WriteRequest(**{**good, **fields})  # type: ignore[arg-type]

    return request


def at(place: int, bad: float) -> list[float]:
    """Three priorities, one of them invalid."""
    return [bad if index == place else 0.5 for index in range(3)]


INSERTS = [
    *(
        Case(
            f"{name} priority",
            "Insert",
            insertion(priorities=float64([0.5, bad])),
            "priorities",
            {"got": f"{bad} at position 1"},
        )
        for name, bad in NOT_PRIORITIES.items()
    ),
    Case("one priority too few", "Insert", insertion(priorities=float64([1.0])), "priorities", {"got": "8 bytes"}),
    Case(
        "one priority too many", "Insert", insertion(priorities=float64([1.0] * 3)), "priorities", {"got": "24 bytes"}
    ),
    Case("half a priority", "Insert", insertion(priorities=b"1234"), "priorities", {"got": "4 bytes"}),
    Case("no rows", "Insert", insertion(count=0, rows=b""), "row_count", {"got": "0"}),
    Case("a negative row count", "Insert", insertion(count=-1), "row_count", {"got": "-1"}),
    Case("a row count too small", "Insert", insertion(count=1), "rows", {"expected": "28 bytes (1 rows of 28)"}),
    Case("a row count too large", "Insert", insertion(count=3), "rows", {"got": "56 bytes"}),
    Case("a huge row count", "Insert", insertion(count=2**63 - 1), "rows", {"got": "56 bytes"}),
    Case("rows missing", "Insert", insertion(rows=b""), "rows", {"got": "0 bytes"}),
    Case("a byte too few", "Insert", insertion(rows=bytes(55)), "rows", {"got": "55 bytes"}),
    Case("a byte too many", "Insert", insertion(rows=bytes(57)), "rows", {"got": "57 bytes"}),
    Case("rows of another schema", "Insert", insertion(rows=bytes(2 * 20)), "rows", {"got": "40 bytes"}),
    Case("a sequence without a writer", "Insert", insertion(sequence=1), "sequence", {"got": "1"}),
    Case("a writer without a sequence", "Insert", insertion(writer=WRITER), "sequence", {"got": "0"}),
    Case("a negative sequence", "Insert", insertion(writer=WRITER, sequence=-5), "sequence", {"got": "-5"}),
    Case("a short writer_id", "Insert", insertion(writer=b"short", sequence=1), "writer_id", {"got": "5 bytes"}),
    Case("a long writer_id", "Insert", insertion(writer=bytes(17), sequence=1), "writer_id", {"got": "17 bytes"}),
    Case("nothing but a name", "Insert", lambda table: replay_pb2.InsertRequest(table=table.name), "row_count"),
]
WRITES = [
    Case("no writer", "Write", writing(writer_id=b""), "writer_id", {"got": "0 bytes"}),
    Case("a short writer_id", "Write", writing(writer_id=b"short"), "writer_id", {"got": "5 bytes"}),
    Case("no sequence", "Write", writing(insertion=replay_pb2.Insertion(row_count=2)), "sequence", {"got": "0"}),
    Case("rows missing", "Write", writing(rows=b""), "rows"),
    Case("a short uid", "Write", writing(table_uid=b"short"), "table_uid"),
    Case(
        "NaN priority",
        "Write",
        writing(insertion=replay_pb2.Insertion(row_count=2, sequence=1, priorities=float64([1, math.nan]))),
        "priorities",
    ),
]
SAMPLES = [
    Case("batch_size 0", "Sample", sampling(batch_size=0), "batch_size", {"expected": "at least 1", "got": "0"}),
    Case("a negative batch_size", "Sample", sampling(batch_size=-3), "batch_size", {"got": "-3"}),
    Case("the smallest batch_size", "Sample", sampling(batch_size=-(2**63)), "batch_size"),
    Case("a negative beta", "Sample", sampling(beta=-0.1), "beta", {"got": "-0.1"}),
    Case("NaN beta", "Sample", sampling(beta=math.nan), "beta", {"got": "nan"}),
    Case("infinite beta", "Sample", sampling(beta=math.inf), "beta", {"got": "inf"}),
    Case("an unknown draw mode", "Sample", sampling(draw_mode=5), "draw_mode", {"got": "5"}),
    Case("a negative draw mode", "Sample", sampling(draw_mode=-1), "draw_mode", {"got": "-1"}),
    Case("an unknown weight norm", "Sample", sampling(weight_norm=77), "weight_norm", {"got": "77"}),
    Case("a negative wait", "Sample", sampling(wait_s=-1.0), "wait_s", {"got": "-1.0"}),
    Case("NaN wait", "Sample", sampling(wait_s=math.nan), "wait_s", {"got": "nan"}),
    Case("a wait of minus infinity", "Sample", sampling(wait_s=-math.inf), "wait_s", {"got": "-inf"}),
    Case("no draw", "Sample", lambda table: replay_pb2.SampleRequest(table=table.name), "batch_size"),
]
UNKNOWN_COLUMN = replay_pb2.ColumnNames(names=["value", "valu"])
TOO_MANY_COLUMNS = replay_pb2.ColumnNames(names=["value"] * 4)
CHOICES = [
    Case(
        f"{what} of columns",
        method,
        make,
        "columns",
        {"expected": expected, "got": got},
    )
    for what, columns, expected, got in (
        ("an unknown name", UNKNOWN_COLUMN, "stored columns: value, payload, check", "'valu'"),
        ("too many names", TOO_MANY_COLUMNS, "at most 3 names", "4"),
    )
    for method, make in (
        ("Sample", choosing(replay_pb2.SampleRequest, draw=replay_pb2.Draw(batch_size=4, columns=columns))),
        ("Read", choosing(replay_pb2.ReadRequest, keys=int64([0]), columns=columns)),
        ("Learn", learning(update=make_update([0], [9.0]), draw=replay_pb2.Draw(batch_size=4, columns=columns))),
    )
]
UPDATES = [
    case
    for method, make in (("UpdatePriorities", updating), ("Learn", learning_update))
    for case in (
        *(
            Case(
                f"{name} priority",
                method,
                make(int64([0, 1, 2]), float64(at(2, bad))),
                "priorities",
                {"got": f"{bad} at position 2"},
            )
            for name, bad in NOT_PRIORITIES.items()
        ),
        Case("NaN for a stale key", method, make(int64([0, 1, -1]), float64(at(2, math.nan))), "priorities"),
        Case(
            "more keys than priorities",
            method,
            make(int64([0, 1]), float64([1.0])),
            "priorities",
            {"expected": "float64[2]: 16 bytes"},
        ),
        Case("more priorities than keys", method, make(int64([0]), float64([1.0, 2.0])), "priorities"),
        Case("float32 priorities", method, make(int64([0, 1]), np.ones(2, np.float32).tobytes()), "priorities"),
        Case("int32 keys", method, make(np.zeros(3, np.int32).tobytes(), float64([1.0])), "keys", {"got": "12 bytes"}),
        Case("half a key", method, make(b"1234", b""), "keys", {"got": "4 bytes"}),
    )
]
READS = [
    Case("half a key", "Read", lambda table: replay_pb2.ReadRequest(table=table.name, keys=b"1234567"), "keys"),
]
LEARNING = [
    Case("batch_size 0", "Learn", learning(draw=make_draw(0)), "batch_size"),
    Case("NaN beta", "Learn", learning(draw=make_draw(1, beta=math.nan)), "beta"),
    Case("an unknown draw mode", "Learn", learning(draw=make_draw(1, draw_mode=9)), "draw_mode"),
    Case("an unknown weight norm", "Learn", learning(draw=make_draw(1, weight_norm=9)), "weight_norm"),
    Case("a negative wait", "Learn", learning(draw=make_draw(1, wait_s=-1.0)), "wait_s"),
    Case("a negative number of batches", "Learn", learning(draw=make_draw(1), batches=-1), "batches", {"got": "-1"}),
    Case("too many batches", "Learn", learning(draw=make_draw(1), batches=257), "batches", {"got": "257"}),
    Case(
        "an update and a draw of no rows",
        "Learn",
        learning(update=make_update([0], [9.0]), draw=make_draw(0)),
        "batch_size",
    ),
    Case(
        "an update and an unknown draw mode",
        "Learn",
        learning(update=make_update([0], [9.0]), draw=make_draw(1, draw_mode=9)),
        "draw_mode",
    ),
    Case(
        "an update and a negative number of batches",
        "Learn",
        learning(update=make_update([0], [9.0]), draw=make_draw(1), batches=-1),
        "batches",
    ),
    Case(
        "an update without a uid",
        "Learn",
        learning(update=make_update([0], [9.0]), table_uid=b""),
        "table_uid",
        {"got": "0 bytes"},
    ),
    Case("a short uid", "Learn", learning(draw=make_draw(1), table_uid=b"short"), "table_uid"),
]
UIDS = [
    Case(
        "a short uid",
        "Insert",
        lambda table: replay_pb2.InsertRequest(table=table.name, table_uid=b"short"),
        "table_uid",
        {"got": "5 bytes"},
    ),
    Case(
        "a short uid",
        "Sample",
        lambda table: replay_pb2.SampleRequest(table=table.name, table_uid=bytes(15), draw=make_draw(1)),
        "table_uid",
        {"got": "15 bytes"},
    ),
    Case(
        "a long uid",
        "Read",
        lambda table: replay_pb2.ReadRequest(table=table.name, table_uid=bytes(17)),
        "table_uid",
        {"got": "17 bytes"},
    ),
    Case(
        "a short uid",
        "UpdatePriorities",
        lambda table: replay_pb2.UpdatePrioritiesRequest(table=table.name, table_uid=b"1"),
        "table_uid",
    ),
    Case(
        "no uid",
        "UpdatePriorities",
        lambda table: replay_pb2.UpdatePrioritiesRequest(table=table.name),
        "table_uid",
        {"expected": "16 bytes", "got": "0 bytes"},
    ),
    Case(
        "a short uid",
        "ResetTable",
        lambda table: replay_pb2.ResetTableRequest(table=table.name, table_uid=b"1"),
        "table_uid",
    ),
    Case(
        "a short uid",
        "DropTable",
        lambda table: replay_pb2.DropTableRequest(table=table.name, table_uid=b"1"),
        "table_uid",
    ),
]


def ask(table: CalledTable, method: str, request: Message) -> object:
    """Call an RPC by name; for a stream, return the reply to its only message."""
    rpc = getattr(table.stub, method)
    return next(rpc(iter([request]))) if method in ("Learn", "Write") else rpc(request)


def table_with_rows(new_table: NewTable, **config: object) -> CalledTable:
    """A table of 12 rows, some of them evicted, with different priorities and a history."""
    table = new_table(capacity=12, **config)
    table.insert(range(20), 1.0 + np.arange(20), stream=4, episode=5)
    table.update([10, 11, 3], [0.5, 0.25, 9.0])
    table.sample(5)
    return table


ALL_CASES = INSERTS + WRITES + SAMPLES + CHOICES + UPDATES + READS + LEARNING + UIDS
CASES_OF_PRIORITIES = [case for case in ALL_CASES if case.field == "priorities"]


CASES_AND_BACKENDS = [
    *((case, "sum_tree") for case in ALL_CASES),
    *((case, backend) for case in CASES_OF_PRIORITIES for backend in ("rank", "uniform")),
]
OF_A_LEARNER = ("Sample", "UpdatePriorities", "Learn")
"""Methods whose calls may also use the local socket."""
FIRST_OF_EACH_METHOD = [
    next(each for each in CASES_AND_BACKENDS if each[0].method == method) for method in OF_A_LEARNER
]
"""All transports check requests with the same code, so one case per method is enough to test the reply."""


def id_of(value: object) -> str:
    """Name of a test case."""
    return f"{value.method}: {value.what}" if isinstance(value, Case) else str(value)


@pytest.mark.parametrize(("case", "backend"), FIRST_OF_EACH_METHOD, ids=id_of)
def test_a_field_of_a_learner_that_is_wrong_is_named_and_nothing_changes(
    new_table: NewTable, case: Case, backend: str
) -> None:
    check_that_nothing_changes(new_table, case, backend)


@wire_only
@pytest.mark.parametrize(("case", "backend"), CASES_AND_BACKENDS, ids=id_of)
def test_a_field_that_is_wrong_is_named_and_nothing_changes(new_table: NewTable, case: Case, backend: str) -> None:
    check_that_nothing_changes(new_table, case, backend)


def check_that_nothing_changes(new_table: NewTable, case: Case, backend: str) -> None:
    table = table_with_rows(new_table, backend=backend)
    before = table.state()
    with refused(case.reason, field=case.field, **case.metadata) as refusal:
        ask(table, case.method, case.request(table))
    assert case.field in refusal.message
    assert refusal.metadata["expected"] in refusal.message
    assert refusal.metadata["got"] in refusal.message
    assert table.state() == before


# Tables: unknown, replaced, empty.

NAMED = [
    ("DropTable", replay_pb2.DropTableRequest()),
    ("DescribeTable", replay_pb2.DescribeTableRequest()),
    ("ResetTable", replay_pb2.ResetTableRequest()),
    ("Insert", replay_pb2.InsertRequest(insertion=replay_pb2.Insertion(row_count=1), rows=rows_of(np.arange(1)))),
    (
        "Write",
        replay_pb2.WriteRequest(
            writer_id=WRITER, insertion=replay_pb2.Insertion(row_count=1, sequence=1), rows=rows_of(np.arange(1))
        ),
    ),
    ("Sample", replay_pb2.SampleRequest(draw=make_draw(1, wait_s=60.0))),
    ("Read", replay_pb2.ReadRequest()),
    ("UpdatePriorities", replay_pb2.UpdatePrioritiesRequest(table_uid=OTHER_UID)),
    ("Learn", replay_pb2.LearnRequest(draw=make_draw(1, wait_s=60.0))),
    ("Stats", replay_pb2.StatsRequest()),
    ("Inspect", replay_pb2.InspectRequest()),
    ("UpdateRows", replay_pb2.UpdateRowsRequest(table_uid=OTHER_UID)),
    ("ReportShard", replay_pb2.ReportShardRequest()),
]
"""Every method with a table name in its request."""


def test_every_method_with_a_table_is_in_the_list() -> None:
    assert {name for name, _ in NAMED} == {
        method.name for method in SERVICE.methods if "table" in method.input_type.fields_by_name
    }


def named(request: Message, name: str, uid: bytes = b"") -> Message:
    """The same request with this table name, and with this uid if the message has a uid field."""
    copy = type(request)()
    copy.CopyFrom(request)
    copy.table = name  # type: ignore[attr-defined]
    if uid:
        copy.table_uid = uid  # type: ignore[attr-defined]
    return copy


@wire_only  # only over gRPC is a table found by its name
@pytest.mark.parametrize(
    ("method", "request_without_name"), NAMED, ids=lambda value: value if isinstance(value, str) else ""
)
@pytest.mark.parametrize("name", ["../../etc/passwd"])
def test_a_table_that_is_not_there_is_named(
    caller: Caller, method: str, request_without_name: Message, name: str
) -> None:
    with refused("TABLE_NOT_FOUND", table=name):
        ask(CalledTable(caller, name, b""), method, named(request_without_name, name))


@wire_only  # only over gRPC is a table found by its name
@pytest.mark.parametrize(
    ("method", "request_without_name"), NAMED, ids=lambda value: value if isinstance(value, str) else ""
)
@pytest.mark.parametrize("letter", ["ß"])
def test_a_long_name_is_not_sent_back_at_length(
    caller: Caller, method: str, request_without_name: Message, letter: str
) -> None:
    """gRPC would drop a status of more than a few kilobytes, including its reason."""
    with refused("TABLE_NOT_FOUND") as refusal:
        ask(CalledTable(caller, "", b""), method, named(request_without_name, letter * 100_000))
    assert refusal.metadata["table"].startswith(letter * 100)
    assert len(refusal.metadata["table"]) < 1000


@pytest.mark.parametrize(
    ("method", "request_without_name"),
    [case for case in NAMED if case[0] not in ("DescribeTable", "Stats")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_table_that_was_replaced_is_told_from_the_new_one(
    new_table: NewTable, method: str, request_without_name: Message
) -> None:
    old = new_table()
    old.drop()
    new = table_with_rows(lambda **config: new_table(old.name, **config))
    before = new.state()
    with refused("TABLE_REPLACED", table=old.name):
        ask(new, method, named(request_without_name, old.name, old.uid))
    assert new.state() == before


@wire_only
@pytest.mark.parametrize("history", ["new", "emptied"])
@pytest.mark.parametrize("method", ["Sample", "Learn"])
class TestAnEmptyTable:
    def request(self, table: CalledTable, method: str, wait_s: float) -> Message:
        draw = make_draw(3, wait_s=wait_s)
        if method == "Sample":
            return replay_pb2.SampleRequest(table=table.name, draw=draw)
        return replay_pb2.LearnRequest(table=table.name, draw=draw)

    def test_is_refused_at_once_without_a_wait(self, table: CalledTable, method: str, history: str) -> None:
        _live_through(table, history)
        before = table.state()
        with refused("TABLE_EMPTY", table=table.name):
            ask(table, method, self.request(table, method, 0.0))
        assert table.state() == before

    def test_counts_no_stale_keys_of_a_request_that_is_refused(
        self, table: CalledTable, method: str, history: str
    ) -> None:
        _live_through(table, history)
        before = table.state()
        request = self.request(table, method, 0.0)
        if isinstance(request, replay_pb2.LearnRequest):
            request.table_uid = table.uid
            request.update.CopyFrom(make_update([0, 1], [1.0, 2.0]))
        with refused("TABLE_EMPTY", table=table.name):
            ask(table, method, request)
        assert table.state() == before

    @pytest.mark.parametrize("wait_s", [1e-9, 0.05])
    def test_is_refused_after_the_wait(self, table: CalledTable, method: str, history: str, wait_s: float) -> None:
        _live_through(table, history)
        before = table.state()
        with refused("WAITED_TOO_LONG", table=table.name, waited_for="rows"):
            ask(table, method, self.request(table, method, wait_s))
        assert table.state() == before


def _live_through(table: CalledTable, history: str) -> None:
    if history == "emptied":
        table.insert(range(5))
        table.reset()


# Invalid configs.

TWO = Schema({"value": Column("int64"), "done": Column("bool")})


def config(**changes: object) -> replay_pb2.TableConfig:
    """A config with changed fields."""
    made = table_config(new_name(), schema=TWO)
    for name, value in changes.items():
        if isinstance(value, Message):
            getattr(made, name).CopyFrom(value)
        else:
            setattr(made, name, value)
    return made


def column(name: str = "x", data_type: int = 5, shape: tuple[int, ...] = ()) -> replay_pb2.TableConfig:
    """A config with an additional column."""
    made = config()
    stored = replay_pb2.StoredColumn(shape=shape)
    stored.data_type = data_type  # type: ignore[assignment]
    made.columns.append(replay_pb2.Column(name=name, stored=stored))
    return made


def without_columns() -> replay_pb2.TableConfig:
    """A config without columns."""
    made = config()
    del made.columns[:]
    return made


def backend(name: str, **parameters: float) -> replay_pb2.TableConfig:
    """A config with this backend."""
    return config(backend=replay_pb2.Backend(name=name, parameters=parameters))


BAD_CONFIGS = [
    ("no name", config(name=""), "name"),
    ("a name that leads elsewhere", config(name="../up"), "name"),
    ("capacity 0", config(capacity=0), "capacity"),
    ("no columns", without_columns(), "columns"),
    ("an unspecified dtype", column(data_type=0), "columns.x.data_type"),
    ("a dimension of 0", column(shape=(3, 0)), "columns.x.shape"),
    ("a column twice", column(name="value"), "columns.value"),
    ("a backend that is not there", backend("heap"), "backend"),
    ("a parameter of another backend", backend("rank", epsilon=0.1), "epsilon"),
    ("a negative alpha", backend("sum_tree", alpha=-0.1), "alpha"),
    ("max_priority 0", backend("sum_tree", max_priority=0.0), "max_priority"),
    ("an epsilon whose mass no total can hold", backend("sum_tree", epsilon=1e300, alpha=2.0), "epsilon"),
    ("an alpha with which the first row has no possible mass", backend("sum_tree", alpha=2.0**53), "alpha"),
]


@wire_only
@pytest.mark.parametrize(("made", "field"), [case[1:] for case in BAD_CONFIGS], ids=[case[0] for case in BAD_CONFIGS])
def test_a_config_that_cannot_be_used_makes_no_table(caller: Caller, made: replay_pb2.TableConfig, field: str) -> None:
    before = caller.table_names()
    with refused("INVALID_FIELD", field=field):
        caller.stub.CreateTable(replay_pb2.CreateTableRequest(config=made))
    assert caller.table_names() == before


@wire_only
def test_a_column_of_a_kind_that_is_not_known_makes_no_table(caller: Caller) -> None:
    made = config()
    made.columns.append(replay_pb2.Column(name="derived"))
    with refused("INVALID_FIELD", field="columns.derived.source"):
        caller.stub.CreateTable(replay_pb2.CreateTableRequest(config=made))


@wire_only
def test_booleans_are_0_or_1(new_table: NewTable) -> None:
    table = new_table(schema=TWO)
    good = np.arange(2).tobytes() + bytes([0, 1])
    request = replay_pb2.InsertRequest(table=table.name, insertion=replay_pb2.Insertion(row_count=2), rows=good)
    table.stub.Insert(request)
    request.rows = good[:-1] + bytes([2])
    with refused("INVALID_FIELD", field="rows.done", got="byte 2"):
        table.stub.Insert(request)
    assert table.describe().inserted == 2


@wire_only
def test_a_priority_whose_mass_no_total_can_hold_is_refused(new_table: NewTable) -> None:
    table = new_table(parameters={"alpha": 3.0})
    limit = 2.0**300
    table.insert([1], [0.99 * limit])
    before = table.state()
    with refused("INVALID_FIELD", field="priorities"):
        table.insert([1], [1.01 * limit])
    with refused("INVALID_FIELD", field="priorities"):
        table.update([0], [1e300])
    assert table.state() == before
    assert math.isfinite(table.stats().total_mass)


@wire_only
def test_a_cap_on_priorities_makes_any_finite_priority_acceptable(new_table: NewTable) -> None:
    table = new_table(parameters={"alpha": 3.0, "max_priority": 2.0})
    table.insert([1, 2], [1e308, 1.0])
    assert table.stats().total_mass == pytest.approx(9.0, rel=1e-5)
    assert table.stats().largest_priority == 1e308


# Too large.


@pytest.mark.parametrize(
    ("method", "request_for"),
    [
        ("Sample", lambda name: replay_pb2.SampleRequest(table=name, draw=make_draw(2**62))),
        ("Sample", lambda name: replay_pb2.SampleRequest(table=name, draw=make_draw((64 << 20) // 28))),
        ("Learn", lambda name: replay_pb2.LearnRequest(table=name, draw=make_draw(2**62))),
        ("Learn", lambda name: replay_pb2.LearnRequest(table=name, draw=make_draw(2**62), batches=256)),
        ("Learn", lambda name: replay_pb2.LearnRequest(table=name, draw=make_draw(12_000), batches=250)),
    ],
)  # fmt: skip
def test_a_reply_that_would_be_too_large_is_refused(
    new_table: NewTable, method: str, request_for: Callable[[str], Message]
) -> None:
    table = table_with_rows(new_table)
    before = table.state()
    with refused("TOO_LARGE", setting="max_reply_mb of the server") as refusal:
        ask(table, method, request_for(table.name))
    assert int(refusal.metadata["got"]) > int(refusal.metadata["limit"])
    assert table.state() == before


def test_an_update_beside_a_draw_that_is_too_large_is_not_applied(new_table: NewTable) -> None:
    table = table_with_rows(new_table)
    before = table.state()
    request = learning(update=make_update([10], [77.0]), draw=make_draw(2**40))(table)
    with refused("TOO_LARGE"):
        ask(table, "Learn", request)
    assert table.state() == before


@wire_only
@pytest.mark.parametrize("method", ["Sample", "Learn"])
def test_a_batch_of_small_rows_is_too_large_by_what_comes_with_its_rows(new_table: NewTable, method: str) -> None:
    """A row of one byte needs twenty more for its key, its probability and its weight."""
    table = new_table(schema=Schema({"x": Column("uint8")}))
    insert = replay_pb2.InsertRequest(table=table.name, insertion=replay_pb2.Insertion(row_count=9), rows=bytes(9))
    table.stub.Insert(insert)
    before = table.stats().sampled
    draw = make_draw(4 << 20)
    request = (
        replay_pb2.SampleRequest(table=table.name, draw=draw)
        if method == "Sample"
        else replay_pb2.LearnRequest(table=table.name, draw=draw)
    )
    with refused("TOO_LARGE", setting="max_reply_mb of the server"):
        ask(table, method, request)
    assert table.stats().sampled == before


@wire_only
def test_a_request_that_is_too_large_is_refused_and_the_next_one_answered(new_table: NewTable) -> None:
    table = table_with_rows(new_table)
    before = table.state()
    request = insertion(rows=bytes(65 << 20))(table)
    with pytest.raises(grpc.RpcError) as error:
        table.stub.Insert(request)
    # gRPC refuses it before the service sees it, so there is no ErrorInfo.
    assert code_of(error.value) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert table.state() == before


@wire_only
def test_a_table_that_no_machine_can_hold_is_refused(caller: Caller) -> None:
    before = caller.table_names()
    for shape in ((2**62,), (2**62, 2**62), (2**40,)):
        made = column(shape=shape)
        made.capacity = 2**40
        with pytest.raises(grpc.RpcError) as error:
            caller.stub.CreateTable(replay_pb2.CreateTableRequest(config=made))
        assert refusal_in(error.value).reason in ("TOO_LARGE", "NO_SPACE", "INVALID_FIELD")
    assert caller.table_names() == before


def test_a_refusal_is_counted_as_an_error_of_its_method(caller: Caller, table: CalledTable) -> None:
    before = caller.method("Sample")
    with refused("TABLE_EMPTY"):
        table.sample(1)
    after = caller.method("Sample")
    assert (after.errors - before.errors, after.calls - before.calls, after.active) == (1, 0, 0)


def test_a_refusal_of_this_server_is_decoded_by_grpc_itself(table: CalledTable) -> None:
    with pytest.raises(grpc.RpcError) as error:
        table.sample(0)
    assert refusal_in(error.value) == Refusal(
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_FIELD",
        "batch_size: expected at least 1, got 0",
        {"field": "batch_size", "expected": "at least 1", "got": "0"},
    )


def test_no_refusal_is_logged_as_a_fault(server: ServerProcess) -> None:
    assert "a request failed" not in server.log()
