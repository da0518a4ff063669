"""Inserts with a writer are applied exactly once, despite retries, losses and restarts."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
from replay_proto.v1 import replay_pb2

from tests.support.caller import CalledTable, Caller, WriteStream
from tests.support.deadlines import wait_until
from tests.support.refusals import refusal_in, refused
from tests.support.rows import rows_of
from tests.support.server_process import ServerProcess
from tests.support.wire_runs import one_run

NewTable = Callable[..., CalledTable]
StartServer = Callable[..., ServerProcess]
Call = Callable[[ServerProcess], Caller]
KEPT = 16
"""Inserts of a writer whose keys are known."""


def new_writer() -> bytes:
    """A new writer id."""
    return secrets.token_bytes(16)


def test_a_repeat_returns_the_first_answers_keys(table: CalledTable) -> None:
    writer = new_writer()
    first = table.insert([1, 2, 3], writer_id=writer, sequence=1)
    table.insert([4])
    repeat = table.insert([1, 2, 3], writer_id=writer, sequence=1)
    assert repeat.tolist() == first.tolist() == [0, 1, 2]
    stats = table.stats()
    assert (stats.table.inserted, stats.repeated_inserts) == (4, 1)


def test_a_repeat_changes_neither_rows_nor_priorities(table: CalledTable) -> None:
    writer = new_writer()
    table.insert([1, 2], [3.0, 4.0], writer_id=writer, sequence=1)
    table.update([0], [9.0])
    before = table.read(range(2))
    table.insert([7, 8], [5.0, 6.0], writer_id=writer, sequence=1)
    after = table.read(range(2))
    assert after.values.tolist() == before.values.tolist()
    assert after.priorities.tolist() == [9.0, 4.0]


def test_the_last_inserts_of_a_writer_can_all_be_repeated(table: CalledTable) -> None:
    writer = new_writer()
    keys = {n: table.insert([n, n], writer_id=writer, sequence=n).tolist() for n in range(1, 41)}
    for sequence in range(41 - KEPT, 41):
        assert table.insert([sequence] * 2, writer_id=writer, sequence=sequence).tolist() == keys[sequence]
    assert table.stats().repeated_inserts == KEPT


def test_a_repeat_that_is_too_old_is_told_that_it_was_applied(table: CalledTable) -> None:
    writer = new_writer()
    for sequence in range(1, 41):
        table.insert([sequence], writer_id=writer, sequence=sequence)
    before = table.state()
    for sequence in (1, 40 - KEPT):
        with refused("SEQUENCE_TOO_OLD", oldest_known=41 - KEPT, got=sequence):
            table.insert([sequence], writer_id=writer, sequence=sequence)
    assert table.state() == before


def test_a_gap_is_refused_with_what_was_expected(table: CalledTable) -> None:
    writer = new_writer()
    table.insert([1], writer_id=writer, sequence=1)
    before = table.state()
    for sequence in (3, 100, 2**63 - 1):
        with refused("SEQUENCE_GAP", expected=2, got=sequence):
            table.insert([9], writer_id=writer, sequence=sequence)
    assert table.state() == before
    assert table.insert([2], writer_id=writer, sequence=2).tolist() == [1]


def test_a_writer_that_is_not_known_begins_with_1(table: CalledTable) -> None:
    before = table.state()
    for sequence in (2, 2**63 - 1):
        with refused("WRITER_UNKNOWN", got=sequence):
            table.insert([9], writer_id=new_writer(), sequence=sequence)
    assert table.state() == before


def test_an_insert_that_was_refused_can_be_sent_again_as_it_should_be(table: CalledTable) -> None:
    writer = new_writer()
    with refused("INVALID_FIELD", field="priorities"):
        table.insert([1], [-1.0], writer_id=writer, sequence=1)
    assert table.insert([1], [1.0], writer_id=writer, sequence=1).tolist() == [0]


def test_writers_do_not_share_their_sequences(table: CalledTable) -> None:
    first, second = new_writer(), new_writer()
    assert table.insert([1], writer_id=first, sequence=1).tolist() == [0]
    assert table.insert([2], writer_id=second, sequence=1).tolist() == [1]
    assert table.insert([1], writer_id=first, sequence=1).tolist() == [0]
    assert table.insert([3], writer_id=first, sequence=2).tolist() == [2]


def test_tables_do_not_share_their_writers(new_table: NewTable) -> None:
    writer = new_writer()
    first, second = new_table(), new_table()
    first.insert([1], writer_id=writer, sequence=1)
    with refused("WRITER_UNKNOWN"):
        second.insert([1], writer_id=writer, sequence=2)
    second.insert([1], writer_id=writer, sequence=1)


def test_a_repeat_is_answered_after_its_rows_are_gone(new_table: NewTable) -> None:
    table = new_table(capacity=3)
    writer = new_writer()
    table.insert([1, 2], writer_id=writer, sequence=1)
    table.insert(range(50))
    assert table.insert([1, 2], writer_id=writer, sequence=1).tolist() == [0, 1]
    table.reset()
    assert table.insert([1, 2], writer_id=writer, sequence=1).tolist() == [0, 1]
    assert table.describe().size == 0


def test_a_writer_inserts_no_more_at_once_than_fits_into_the_slack(new_table: NewTable) -> None:
    """So that inserts are atomic."""
    table = new_table(capacity=1000)
    slack = table.describe().slots - 1000
    writer = new_writer()
    with refused("TOO_LARGE", limit=slack, got=slack + 1):
        table.insert(range(slack + 1), writer_id=writer, sequence=1)
    assert table.describe().inserted == 0
    assert len(table.insert(range(slack), writer_id=writer, sequence=1)) == slack


# Streams of a writer.


def test_a_stream_acknowledges_every_message_in_order(table: CalledTable) -> None:
    stream = WriteStream(table, new_writer())
    for sequence in range(1, 6):
        stream.send([sequence, sequence], sequence)
    answers = [stream.receive() for _ in range(5)]
    assert [answer.sequence for answer in answers] == [1, 2, 3, 4, 5]
    assert [answer.keys[0].first for answer in answers] == [0, 2, 4, 6, 8]
    assert {answer.table_uid for answer in answers} == {table.uid}
    stream.close()
    assert list(stream.call) == []
    assert table.read(range(10)).values.tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_later_messages_of_a_stream_leave_out_what_the_first_has_said(table: CalledTable) -> None:
    stream = WriteStream(table, new_writer())
    stream.write([1], 1)
    stream.send_message(
        replay_pb2.WriteRequest(
            insertion=replay_pb2.Insertion(row_count=1, sequence=2, runs=one_run(1, 4, 5)), rows=rows_of(np.array([2]))
        )
    )
    assert stream.receive().sequence == 2
    assert table.read([1]).streams.tolist() == [4]
    stream.close()


@pytest.mark.parametrize(("field", "value"), [("table", "other"), ("table_uid", b"y" * 16), ("writer_id", b"z" * 16)])
def test_a_stream_that_contradicts_itself_is_refused(table: CalledTable, field: str, value: str | bytes) -> None:
    stream = WriteStream(table, new_writer())
    stream.write([1], 1)
    message = replay_pb2.WriteRequest(
        insertion=replay_pb2.Insertion(row_count=1, sequence=2), rows=rows_of(np.array([2]))
    )
    setattr(message, field, value)
    stream.send_message(message)
    with refused("INVALID_FIELD", field=field):
        stream.receive()
    assert table.describe().inserted == 1


def test_a_stream_and_single_inserts_of_a_writer_count_together(table: CalledTable) -> None:
    writer = new_writer()
    stream = WriteStream(table, writer)
    stream.write([1], 1)
    table.insert([2], writer_id=writer, sequence=2)
    assert stream.write([2], 2).tolist() == [1]
    assert stream.write([3], 3).tolist() == [2]
    stream.close()


def test_a_gap_ends_a_stream_and_what_came_before_holds(table: CalledTable) -> None:
    writer = new_writer()
    stream = WriteStream(table, writer)
    stream.send([1], 1)
    stream.send([3], 3)
    stream.send([4], 4)
    assert stream.receive().sequence == 1
    with refused("SEQUENCE_GAP", expected=2, got=3):
        stream.receive()
    again = WriteStream(table, writer)
    assert [again.write([n], n).tolist() for n in (1, 2, 3)] == [[0], [1], [2]]
    again.close()


def test_a_second_stream_of_a_writer_ends_the_first(table: CalledTable) -> None:
    writer = new_writer()
    first = WriteStream(table, writer)
    first.write([1], 1)
    second = WriteStream(table, writer)
    assert second.write([1], 1).tolist() == [0]
    with refused("WRITER_SUPERSEDED"):
        first.receive()
    assert second.write([2], 2).tolist() == [1]
    second.close()
    assert list(second.call) == []


def test_every_stream_but_the_last_of_many_is_superseded(table: CalledTable) -> None:
    writer = new_writer()
    streams = [WriteStream(table, writer) for _ in range(6)]
    for stream in streams:
        stream.write([1], 1)
    for stream in streams[:-1]:
        with refused("WRITER_SUPERSEDED"):
            stream.receive()
    assert streams[-1].write([2], 2).tolist() == [1]
    streams[-1].close()


def test_streams_of_a_writer_that_race_all_end(table: CalledTable) -> None:
    """A stream may be superseded while its reply is being sent, and must still end."""
    for _ in range(40):
        writer = new_writer()
        streams = [WriteStream(table, writer) for _ in range(6)]
        for stream in streams:
            stream.send([1], 1)
            stream.close()
        for stream in streams:
            try:
                assert [answer.sequence for answer in stream.call] in ([], [1])
            except grpc.RpcError as error:
                assert refusal_in(error).reason == "WRITER_SUPERSEDED"  # noqa: PT017 (either end will do)


def test_streams_of_several_writers_or_tables_live_side_by_side(new_table: NewTable) -> None:
    writer = new_writer()
    streams = [
        WriteStream(new_table(), writer),
        WriteStream(new_table(), writer),
        WriteStream(new_table(), new_writer()),
    ]
    for sequence in (1, 2, 3):
        for stream in streams:
            assert stream.write([sequence], sequence).tolist() == [sequence - 1]
    for stream in streams:
        stream.close()


def test_a_stream_that_was_superseded_no_longer_counts_as_open(caller: Caller, table: CalledTable) -> None:
    before = caller.method("Write").active
    writer = new_writer()
    first, second = WriteStream(table, writer), WriteStream(table, writer)
    first.write([1], 1)
    second.write([1], 1)
    wait_until(lambda: caller.method("Write").active == before + 1, "one stream is open")
    second.close()
    wait_until(lambda: caller.method("Write").active == before, "none is open")


def test_a_stream_to_a_table_that_is_dropped_learns_it(new_table: NewTable) -> None:
    table = new_table()
    stream = WriteStream(table, new_writer())
    stream.write([1], 1)
    table.drop()
    stream.send([2], 2)
    with refused("TABLE_NOT_FOUND"):
        stream.receive()


def test_a_stream_to_a_table_that_was_replaced_learns_it(new_table: NewTable) -> None:
    table = new_table()
    stream = WriteStream(table, new_writer())
    stream.write([1], 1)
    table.drop()
    new_table(table.name)
    stream.send([2], 2)
    with refused("TABLE_REPLACED"):
        stream.receive()


def test_a_writer_forgotten_after_thousands_of_others_is_told(new_table: NewTable) -> None:
    """The server keeps records of the 4096 writers that inserted last."""
    table = new_table(capacity=10)
    writers = [number.to_bytes(16, "little") for number in range(1, 4098)]
    rows = rows_of(np.arange(1))
    requests = [
        replay_pb2.InsertRequest(
            table=table.name, writer_id=writer, insertion=replay_pb2.Insertion(row_count=1, sequence=1), rows=rows
        )
        for writer in writers
    ]
    in_flight = [table.stub.Insert.future(request) for request in requests[:1]]
    in_flight[0].result()
    for start in range(1, len(requests), 64):
        for answer in [table.stub.Insert.future(request) for request in requests[start : start + 64]]:
            answer.result()
    with refused("WRITER_UNKNOWN", got=2):
        table.insert([1], writer_id=writers[0], sequence=2)
    table.insert([1], writer_id=writers[2000], sequence=2)
    assert table.describe().inserted == 4098


# Across the end of a server.


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_repeats_are_known_after_a_restart(start_server: StartServer, call: Call, tmp_path: Path, end: str) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"))
    table = call(server).create()
    writers = [new_writer(), new_writer()]
    keys = {
        (writer, n): table.insert([n] * n, writer_id=writer, sequence=n).tolist()
        for n in range(1, 6)
        for writer in writers
    }
    getattr(server, end)()
    server.restart()
    table = table.through(call(server))
    for (writer, sequence), first in keys.items():
        assert table.insert([0] * sequence, writer_id=writer, sequence=sequence).tolist() == first
    with refused("SEQUENCE_GAP", expected=6, got=7):
        table.insert([1], writer_id=writers[0], sequence=7)
    assert table.insert([1], writer_id=writers[1], sequence=6).tolist() == [30]
    assert table.stats().repeated_inserts == 10


def test_a_stream_that_is_cut_by_a_kill_goes_on_where_it_was(
    start_server: StartServer, call: Call, tmp_path: Path
) -> None:
    """It has the maximum number of inserts in flight that can be retried."""
    server = start_server("--data-dir", str(tmp_path / "data"))
    table = call(server).create(capacity=1000)
    writer = new_writer()
    stream = WriteStream(table, writer)
    acknowledged = 0
    for sequence in range(1, 101):
        stream.send([sequence, sequence], sequence)
        if sequence >= KEPT:
            acknowledged = stream.receive().sequence
    server.kill()
    with contextlib.suppress(grpc.RpcError):
        for answer in stream.call:
            acknowledged = answer.sequence
    server.restart()
    table = table.through(call(server))
    stream = WriteStream(table, writer)
    for sequence in range(acknowledged + 1, 201):
        stream.write([sequence, sequence], sequence)
    stream.close()
    assert table.read(range(500)).values.tolist() == [n for n in range(1, 201) for _ in range(2)]


def test_a_refusal_of_a_stream_is_decoded_like_any_other(table: CalledTable) -> None:
    stream = WriteStream(table, b"short")
    stream.send([1], 1)
    with pytest.raises(grpc.RpcError) as error:
        stream.receive()
    assert refusal_in(error.value).metadata["field"] == "writer_id"
