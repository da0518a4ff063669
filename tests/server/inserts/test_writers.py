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


def test_a_repeat_that_is_too_old_is_told_that_it_was_applied(table: CalledTable) -> None:
    writer = new_writer()
    for sequence in range(1, 41):
        table.insert([sequence], writer_id=writer, sequence=sequence)
    before = table.state()
    for sequence in (1, 40 - KEPT):
        with refused("SEQUENCE_TOO_OLD", oldest_known=41 - KEPT, got=sequence):
            table.insert([sequence], writer_id=writer, sequence=sequence)
    assert table.state() == before
    for sequence in range(41 - KEPT, 41):
        assert table.insert([sequence], writer_id=writer, sequence=sequence).tolist() == [sequence - 1]


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
