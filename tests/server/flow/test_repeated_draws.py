"""Draws from queues that readers repeat, as proto/replay/v1/replay.proto describes `ReaderStamp`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replay_proto.v1 import replay_pb2
from replay_server.flow.admission import RETURN_S

from tests.support.caller import CALL_TIMEOUT_S, CalledTable, Caller, LearnStream, Sampled, make_draw
from tests.support.flow import wait_for_waiting
from tests.support.refusals import refused
from tests.support.server_process import ServerProcess

NewTable = Callable[..., CalledTable]
Call = Callable[[ServerProcess], Caller]
READER, OTHER = b"a reader's id: 1", b"a reader's id: 2"


@pytest.fixture
def queue(new_table: NewTable) -> CalledTable:
    """A queue of ten rows."""
    return new_table(capacity=10, backend="fifo")


def stamp(sequence: int, reader: bytes = READER, received: int = 0) -> replay_pb2.ReaderStamp:
    return replay_pb2.ReaderStamp(reader_id=reader, sequence=sequence, received=received)


def begin(queue: CalledTable, rows: int, given: replay_pb2.ReaderStamp, wait_s: float = CALL_TIMEOUT_S) -> Any:
    request = replay_pb2.SampleRequest(
        table=queue.name, table_uid=queue.uid, draw=make_draw(rows, wait_s=wait_s), reader=given
    )
    return queue.stub.Sample.future(request, timeout=CALL_TIMEOUT_S)


def values(answer: replay_pb2.SampleResponse) -> list[int]:
    drawn: list[int] = Sampled.decode(answer.batch, answer.rows).values.tolist()
    return drawn


def sample(queue: CalledTable, rows: int, given: replay_pb2.ReaderStamp, wait_s: float = 0.0) -> list[int]:
    answer: replay_pb2.SampleResponse = begin(queue, rows, given, wait_s).result()
    return values(answer)


def test_a_repeat_gets_the_same_rows_and_takes_no_more(queue: CalledTable) -> None:
    queue.insert(range(10))
    assert sample(queue, 3, stamp(1)) == [0, 1, 2]
    assert sample(queue, 4, stamp(1, OTHER)) == [3, 4, 5, 6]
    for _ in range(2):
        assert sample(queue, 3, stamp(1)) == [0, 1, 2]
    assert sample(queue, 2, stamp(2, received=1)) == [7, 8]
    assert sample(queue, 3, stamp(1)) == [0, 1, 2]
    assert queue.stats().sampled == 9
    assert queue.sample(1).values.tolist() == [9]


def test_a_repeat_needs_no_rows_and_no_room(queue: CalledTable) -> None:
    queue.insert(range(3))
    assert sample(queue, 3, stamp(1)) == [0, 1, 2]
    assert sample(queue, 3, stamp(1)) == [0, 1, 2]
    with refused("TABLE_EMPTY"):
        sample(queue, 3, stamp(2))
    queue.insert(range(3, 6))
    assert sample(queue, 3, stamp(2)) == [3, 4, 5], "a draw that was refused took nothing"


def test_a_learner_repeats_batches_of_one_message(queue: CalledTable) -> None:
    queue.insert(range(10))
    for _ in range(2):
        stream = LearnStream(queue)
        _, batches = stream.ask(draw=make_draw(2), batches=3, reader=stamp(1))
        assert [batch.values.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]
        stream.close()


def test_rows_that_were_overwritten_make_way_for_newer_ones(
    start_server: Callable[..., ServerProcess], call: Call
) -> None:
    server = start_server()
    queue = call(server).create(capacity=10, backend="fifo")
    slots = queue.describe().slots
    queue.insert(range(3))
    assert sample(queue, 3, stamp(1)) == [0, 1, 2]
    for start in range(3, slots, 5):
        queue.insert(range(start, start + 5))
        queue.sample(5)
    queue.insert(range(100, 103))
    assert sample(queue, 3, stamp(1)) == [100, 101, 102]
    server.wait_for_log("3 rows of a draw that its reader repeats were overwritten")


def test_rows_that_a_reset_removed_are_not_delivered_again(queue: CalledTable) -> None:
    queue.insert(range(3))
    assert sample(queue, 3, stamp(1)) == [0, 1, 2]
    queue.reset()
    with refused("TABLE_EMPTY"):
        sample(queue, 3, stamp(1))


def test_a_repeat_gets_what_the_first_draw_gets_that_still_waits(queue: CalledTable) -> None:
    """The reader's connection has broken, but the server does not know yet."""
    first = begin(queue, 3, stamp(1))
    wait_for_waiting(queue, 1)
    again = begin(queue, 3, stamp(1))
    wait_for_waiting(queue, 2)
    queue.insert(range(3))
    assert values(first.result()) == values(again.result()) == [0, 1, 2]
    queue.insert(range(3, 6))
    assert queue.sample(3).values.tolist() == [3, 4, 5], "the repeat holds no rows"


@pytest.fixture
def restarted(start_server: Callable[..., ServerProcess], call: Call, tmp_path: Path) -> CalledTable:
    """A queue after a kill. A reader may repeat a draw of the rows 1 and 2; nothing else is left in it."""
    server = start_server("--data-dir", str(tmp_path / "data"))
    queue = call(server).create(capacity=10, backend="fifo")
    queue.insert(range(3))
    sample(queue, 1, stamp(1))
    sample(queue, 2, stamp(2, received=1))
    server.kill()
    server.restart()
    return call(server).table(queue.name)


def fill_the_ring(queue: CalledTable) -> None:
    """Insert and draw rows until one that the reader may draw again is next to be overwritten."""
    for value in range(3, 1 + queue.describe().slots):
        queue.insert([value], wait_s=0.0)
        assert queue.sample(1).values.tolist() == [value]
    with refused("LIMITED", waited_for="room"):
        queue.insert([0], wait_s=0.0)


def test_a_restarted_server_keeps_rows_for_a_reader_that_may_repeat_its_draw(restarted: CalledTable) -> None:
    fill_the_ring(restarted)
    assert sample(restarted, 2, stamp(2, received=1)) == [1, 2]
    with refused("LIMITED", waited_for="room"):
        restarted.insert([0], wait_s=0.0)
    draw = begin(restarted, 1, stamp(3, received=2))
    restarted.insert([1_000])
    assert values(draw.result()) == [1_000]


@pytest.mark.parametrize("draw_comes_first", [False, True])
def test_a_reader_that_waits_and_inserts_that_keep_its_rows_do_not_wait_for_each_other(
    restarted: CalledTable, draw_comes_first: bool
) -> None:
    """The reader sends several requests at once, so it cannot say yet what it has received."""
    fill_the_ring(restarted)
    began = time.monotonic()
    if draw_comes_first:
        draw = begin(restarted, 1, stamp(3, received=1))
        wait_for_waiting(restarted, 1)
        restarted.insert([1_000])
    else:
        insert = restarted.begin_insert([1_000])
        wait_for_waiting(restarted, 1)
        draw = begin(restarted, 1, stamp(3, received=1))
        insert.result()
    assert values(draw.result()) == [1_000]
    assert time.monotonic() - began < RETURN_S / 2


def test_it_does_not_wait_for_a_reader_that_never_returns(restarted: CalledTable) -> None:
    fill_the_ring(restarted)
    began = time.monotonic()
    restarted.insert([1_000])
    assert time.monotonic() - began < 2 * RETURN_S
    assert sample(restarted, 1, stamp(2, received=1)) == [1_000], "its rows were overwritten"


def test_it_keeps_nothing_that_a_reader_has_received(
    start_server: Callable[..., ServerProcess], call: Call, tmp_path: Path
) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"))
    queue = call(server).create(capacity=10, backend="fifo")
    queue.insert(range(3))
    sample(queue, 2, stamp(1))
    sample(queue, 1, stamp(2, received=1))
    server.kill()
    server.restart()
    again = call(server).table(queue.name)
    for value in range(3, 2 + again.describe().slots):
        again.insert([value], wait_s=0.0)
        again.sample(1)


@pytest.mark.parametrize(
    ("given", "field", "expected"),
    [
        (replay_pb2.ReaderStamp(reader_id=READER[1:], sequence=1), "reader.reader_id", "16 bytes"),
        (replay_pb2.ReaderStamp(sequence=1), "reader.reader_id", "16 bytes"),
        (stamp(0), "reader.sequence", "at least 1"),
        (stamp(-1), "reader.sequence", "at least 1"),
        (stamp(3, received=3), "reader.received", "0 to 2"),
        (stamp(3, received=-1), "reader.received", "0 to 2"),
    ],
)
def test_wrong_numbers_are_refused(
    queue: CalledTable, given: replay_pb2.ReaderStamp, field: str, expected: str
) -> None:
    queue.insert(range(3))
    with refused("INVALID_FIELD", field=field) as refusal:
        sample(queue, 1, given)
    assert expected in refusal.metadata["expected"]
    assert queue.sample(3).values.tolist() == [0, 1, 2]


def test_a_message_without_a_draw_has_no_number(queue: CalledTable) -> None:
    stream = LearnStream(queue)
    stream.send(wants_state=True, reader=stamp(1))
    with refused("INVALID_FIELD", field="reader", expected="none without a draw"):
        stream.receive()


def test_only_draws_from_a_queue_have_numbers(new_table: NewTable) -> None:
    table = new_table(backend="uniform")
    table.insert(range(3))
    with refused("INVALID_FIELD", field="reader", expected="none with the backend uniform, only with fifo"):
        sample(table, 1, stamp(1))
