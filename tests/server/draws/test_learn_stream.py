"""The learner's stream: order, waits and termination."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2
from replay_server.backends import BACKENDS

from tests.support.caller import CALL_TIMEOUT_S, CalledTable, Caller, LearnStream, make_draw, make_update, wire_only
from tests.support.deadlines import wait_until
from tests.support.refusals import refused
from tests.support.server_process import ServerProcess

ALL_DATA_PATHS = True

NewTable = Callable[..., CalledTable]


@pytest.fixture
def filled(new_table: NewTable) -> CalledTable:
    """A table of 20 rows whose mass is their priority."""
    table = new_table(parameters={"alpha": 1.0, "epsilon": 0.0}, seed=0)
    table.insert(range(20))
    return table


@pytest.fixture
def stream(filled: CalledTable) -> Iterator[LearnStream]:
    """A learner's stream for that table."""
    opened = LearnStream(filled)
    yield opened
    opened.vanish()


def only(key: int) -> replay_pb2.PriorityUpdate:
    """An update after which one row of 20 has all the mass."""
    return make_update(range(20), [float(each == key) for each in range(20)])


def test_an_update_is_in_force_for_the_draw_of_its_message(stream: LearnStream) -> None:
    answer, (batch,) = stream.ask(update=only(7), draw=make_draw(5))
    assert (answer.update.updated, answer.update.stale) == (20, 0)
    assert set(batch.values) == {7}
    assert set(batch.probabilities) == {1.0}


def test_an_update_is_in_force_for_every_draw_asked_for_after_it(stream: LearnStream) -> None:
    """All requests are sent before the first reply is read."""
    for key in range(20):
        stream.send(update=only(key))
        stream.send(draw=make_draw(3))
        stream.send(draw=make_draw(2), batches=2)
    for key in range(20):
        assert stream.receive().update.updated == 20
        for _ in range(2):
            assert set(np.frombuffer(stream.receive().batches[0].keys, np.int64)) == {key}


def test_an_update_is_not_in_force_for_a_draw_asked_for_before_it(stream: LearnStream) -> None:
    stream.send(update=only(3), draw=make_draw(5))
    stream.send(update=only(4), draw=make_draw(5))
    first, second = stream.receive(), stream.receive()
    assert set(np.frombuffer(first.batches[0].keys, np.int64)) == {3}
    assert set(np.frombuffer(second.batches[0].keys, np.int64)) == {4}


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_batches_come_in_one_message(new_table: NewTable, backend: str) -> None:
    table = new_table(backend=backend)
    table.insert(np.arange(20) * 5, 1.0 + np.arange(20))
    stream = LearnStream(table)
    answer, batches = stream.ask(draw=make_draw(16, beta=0.5), batches=4)
    assert len(batches) == 4
    for batch in batches:
        assert batch.values.tolist() == (batch.keys * 5).tolist()
        assert batch.batch.beta == 0.5
    assert len({batch.batch.keys for batch in batches}) == 4
    assert not answer.HasField("update")
    assert answer.table_uid == table.uid
    assert table.stats().sampled == 64
    stream.close()


@wire_only
def test_0_batches_count_as_1(stream: LearnStream) -> None:
    _, batches = stream.ask(draw=make_draw(5), batches=0)
    assert len(batches) == 1


@wire_only
def test_an_update_alone_is_answered_without_batches(stream: LearnStream) -> None:
    answer, batches = stream.ask(update=make_update([0, 0, 1, 99, -1], [1.0, 2.0, 3.0, 4.0, 5.0]))
    assert batches == []
    assert (answer.update.updated, answer.update.stale) == (2, 2)


@wire_only
def test_a_draw_alone_is_answered_without_an_update(stream: LearnStream) -> None:
    answer, batches = stream.ask(draw=make_draw(5))
    assert not answer.HasField("update")
    assert len(batches) == 1


@wire_only
def test_a_request_of_nothing_is_answered_with_nothing(stream: LearnStream) -> None:
    answer, batches = stream.ask()
    assert batches == []
    assert not answer.HasField("update")


@wire_only
def test_an_update_of_no_keys_is_still_an_update(stream: LearnStream) -> None:
    answer, _ = stream.ask(update=make_update([], []))
    assert answer.HasField("update")
    assert answer.update.updated == 0


def test_later_requests_leave_out_the_table(filled: CalledTable, stream: LearnStream) -> None:
    stream.ask(draw=make_draw(1))
    stream.send_message(replay_pb2.LearnRequest(update=only(2), draw=make_draw(4)))
    assert set(np.frombuffer(stream.receive().batches[0].keys, np.int64)) == {2}


@pytest.mark.parametrize(("field", "value"), [("table", "other"), ("table_uid", b"y" * 16)])
def test_a_stream_that_contradicts_itself_is_refused(stream: LearnStream, field: str, value: str | bytes) -> None:
    stream.ask(draw=make_draw(1))
    request = replay_pb2.LearnRequest(draw=make_draw(1))
    setattr(request, field, value)
    stream.send_message(request)
    with refused("INVALID_FIELD", field=field):
        stream.receive()


@wire_only
def test_a_stream_without_a_table_is_refused(stream: LearnStream) -> None:
    stream.send_message(replay_pb2.LearnRequest(draw=make_draw(1)))
    with refused("TABLE_NOT_FOUND", table=""):
        stream.receive()


def test_a_large_answer_is_whole(new_table: NewTable) -> None:
    """Several megabytes, gathered in a worker thread."""
    table = new_table(capacity=5000, schema=Schema({"x": Column("uint8", (1000,))}))
    insertion = replay_pb2.Insertion(row_count=60)
    table.stub.Insert(replay_pb2.InsertRequest(table=table.name, insertion=insertion, rows=b"\1" * 60_000))
    stream = LearnStream(table)
    for _ in range(3):
        stream.send(draw=make_draw(2000), batches=4)
    for _ in range(3):
        answer = stream.receive()
        assert len(answer.batches) == 4
        assert answer.rows == b"\1" * 8_000_000
    stream.close()


def test_a_stream_that_has_no_more_requests_ends_in_peace(stream: LearnStream) -> None:
    stream.send(draw=make_draw(1))
    stream.close()
    assert len(list(stream.call)) == 1
    assert stream.call.code() is grpc.StatusCode.OK


def test_many_learners_have_streams_of_their_own(filled: CalledTable) -> None:
    streams = [LearnStream(filled) for _ in range(8)]
    for stream in streams:
        stream.send(draw=make_draw(10))
    for stream in streams:
        assert len(stream.receive().batches) == 1
        stream.close()
    assert filled.stats().sampled == 80


# A refused request ends the stream; earlier requests remain in effect.


@pytest.mark.parametrize(
    "bad",
    [
        {"draw": make_draw(0)},
        {"update": make_update([1], [float("nan")])},
        {"update": make_update([1], [7.0]), "draw": make_draw(0)},
        {"update": make_update([1], [7.0]), "draw": make_draw(1), "batches": -1},
    ],
    ids=["draw", "update", "update and draw", "batches"],
)
def test_a_request_that_is_refused_ends_the_stream_and_those_before_it_hold(
    filled: CalledTable, stream: LearnStream, bad: dict[str, object]
) -> None:
    stream.send(update=make_update([0], [5.0]), draw=make_draw(3))
    stream.send(**bad)  # type: ignore[arg-type]
    stream.send(update=make_update([0], [6.0]))
    assert len(stream.receive().batches) == 1
    with refused("INVALID_FIELD"):
        stream.receive()
    assert filled.read([0, 1]).priorities.tolist() == [5.0, 1.0]
    assert filled.stats().sampled == 3


# Waiting.


def test_a_draw_waits_until_rows_come(table: CalledTable) -> None:
    stream = LearnStream(table)
    stream.send(draw=make_draw(5, wait_s=CALL_TIMEOUT_S), batches=2)
    wait_until(lambda: table.stats().waiting == 1, "the draw waits")
    table.insert([42])
    assert [set(np.frombuffer(batch.keys, np.int64)) for batch in stream.receive().batches] == [{0}, {0}]
    assert table.stats().waiting == 0
    stream.close()


def test_requests_behind_one_that_waits_are_answered_after_it(table: CalledTable) -> None:
    stream = LearnStream(table)
    stream.send(draw=make_draw(5, wait_s=CALL_TIMEOUT_S))
    stream.send(update=make_update([0], [9.0]))
    stream.send(draw=make_draw(2))
    wait_until(lambda: table.stats().waiting == 1, "the draw waits")
    table.insert([42])
    assert len(stream.receive().batches) == 1
    assert stream.receive().update.updated == 1
    assert len(stream.receive().batches) == 1
    assert table.read([0]).priorities.tolist() == [9.0]
    stream.close()


def test_a_table_that_is_dropped_sends_away_those_who_wait(new_table: NewTable) -> None:
    table = new_table()
    learners = [LearnStream(table) for _ in range(5)]
    for learner in learners:
        learner.send(draw=make_draw(5, wait_s=CALL_TIMEOUT_S))
    wait_until(lambda: table.stats().waiting == 5, "all of them wait")
    table.drop()
    for learner in learners:
        with refused("TABLE_NOT_FOUND", table=table.name):
            learner.receive()


@wire_only
def test_a_table_that_is_made_anew_is_not_the_one_that_was_waited_for(new_table: NewTable) -> None:
    table = new_table()
    nameless = LearnStream(CalledTable(table.caller, table.name, b""))
    nameless.send(draw=make_draw(5, wait_s=CALL_TIMEOUT_S))
    wait_until(lambda: table.stats().waiting == 1, "it waits")
    table.drop()
    new_table(table.name).insert([1])
    with pytest.raises(grpc.RpcError):
        nameless.receive()


def test_a_stream_of_a_table_that_was_replaced_learns_it(new_table: NewTable) -> None:
    table = new_table()
    table.insert([1])
    stream = LearnStream(table)
    stream.ask(draw=make_draw(1))
    table.drop()
    new_table(table.name).insert([1])
    stream.send(draw=make_draw(1))
    with refused("TABLE_REPLACED", table=table.name):
        stream.receive()


# Learners that misbehave.


@pytest.mark.parametrize("waiting", [False, True], ids=["at work", "waiting"])
def test_a_learner_that_vanishes_no_longer_counts(caller: Caller, table: CalledTable, waiting: bool) -> None:
    before = caller.method("Learn").active
    if not waiting:
        table.insert(range(10))
    learners = [LearnStream(table) for _ in range(5)]
    for learner in learners:
        learner.send(draw=make_draw(5, wait_s=CALL_TIMEOUT_S), batches=10)
    wait_until(lambda: caller.method("Learn").active == before + 5, "all streams are open")
    for learner in learners:
        learner.vanish()
    wait_until(lambda: caller.method("Learn").active == before, "no stream is open")
    assert table.stats().waiting == 0


def test_a_connection_that_is_cut_ends_its_streams(caller: Caller, server: ServerProcess, table: CalledTable) -> None:
    before = caller.method("Learn").active
    other = Caller(server.address, caller.data_path)
    stream = LearnStream(table.through(other))
    stream.send(draw=make_draw(5, wait_s=CALL_TIMEOUT_S))
    wait_until(lambda: table.stats().waiting == 1, "it waits")
    other.close()
    wait_until(lambda: caller.method("Learn").active == before, "the stream is closed")
    assert table.stats().waiting == 0


def test_a_learner_that_does_not_read_is_held_up_and_nobody_else_is(
    new_table: NewTable, server: ServerProcess, call: Callable[[ServerProcess], Caller]
) -> None:
    """It requests 800 MB and reads nothing: the server prepares few replies, and keeps serving others."""
    table = new_table(capacity=10_000)
    table.insert(np.arange(10_000))
    resident = server.resident_bytes
    slow = table.through(call(server))
    batch_bytes = 28 * 14_000
    asked = 2000
    request = replay_pb2.LearnRequest(table=table.name, draw=make_draw(14_000))

    def requests() -> Iterator[replay_pb2.LearnRequest]:
        for _ in range(asked):
            yield request
        # The call stays open while its replies are not read.

    reading = slow.stub.Learn(requests(), timeout=CALL_TIMEOUT_S)
    wait_until(lambda: table.stats().sampled > 0, "it is served")
    for _ in range(200):
        table.sample(10)
        table.insert([1])
    sampled = table.stats().sampled - 2000
    assert sampled / 14_000 * batch_bytes < 64 << 20, "answers pile up"
    assert server.resident_bytes - resident < 256 << 20
    answered = sum(1 for _ in zip(reading, range(300), strict=False))
    assert answered == 300
    reading.cancel()
    with contextlib.suppress(grpc.RpcError):
        list(reading)
