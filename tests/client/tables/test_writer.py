"""Writers: order, exactly-once inserts, waits and errors."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from replay_client import (
    ClosedError,
    Column,
    DeadlineExceededError,
    InvalidArgumentError,
    LimitedError,
    ReplayClient,
    Table,
    TableNotFoundError,
    TableReplacedError,
)
from replay_client._transport.answered_stream import AnsweredStream, PulledMessages, Stream
from replay_client._transport.frame_stream import SentFrames
from replay_client._writing.writing import DELAYED_BLOCK_ROWS
from replay_proto.v1 import replay_pb2

from tests.client.conftest import COLUMNS, ways
from tests.client.numbered import assert_whole, row, rows
from tests.support.caller import SAME_HOST, Caller, wire_only
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

ALL_DATA_PATHS = True

NewTable = Callable[..., Table]
StartServer = Callable[..., ServerProcess]
Connect = Callable[..., ReplayClient]


def numbers_in(table: Table) -> list[int]:
    """The numbers of all rows of a table, in order of their keys, after checking that the rows are intact."""
    read = table.read(np.arange(table.describe().inserted))
    assert_whole(read.columns)
    return [int(number) for number in read["number"]]


def test_rows_arrive_once_each_and_in_order(new_table: NewTable) -> None:
    table = new_table(capacity=100_000)
    with table.writer() as writer:
        for number in range(5000):
            writer.append(**row(number))
        writer.flush(timeout_s=30)
        assert (writer.acknowledged, writer.in_flight) == (5000, 0)
    assert numbers_in(table) == list(range(5000))
    assert table.stats().repeated_inserts == 0


def test_leaving_the_block_sends_the_rest(table: Table) -> None:
    with table.writer(max_delay_s=1000.0) as writer:
        for number in range(3):
            writer.append(**row(number))
    assert numbers_in(table) == [0, 1, 2]


def test_an_unused_writer_and_one_closed_twice_are_no_problem(table: Table) -> None:
    with table.writer() as writer:
        writer.flush()
        writer.end_episode()
    writer.close()
    assert table.describe().inserted == 0


def test_a_row_does_not_wait_for_its_block_to_fill(table: Table) -> None:
    with table.writer(max_delay_s=0.01) as writer:
        for number in range(3):
            writer.append(**row(number))
            wait_until(lambda: writer.in_flight == 0, "the row was acknowledged")
        assert writer.acknowledged == 3
    assert numbers_in(table) == [0, 1, 2]


def test_rows_wait_for_others_as_long_as_they_are_told(table: Table) -> None:
    with table.writer(min_delay_s=math.inf, max_delay_s=1000.0) as writer:
        writer.append(**row(0))
        writer.end_episode()
        with pytest.raises(DeadlineExceededError):
            table.sample(1, beta=0.0, timeout_s=0.2)
        assert writer.in_flight == 1
        writer.flush()
        assert table.sample(1, beta=0.0)["number"].tolist() == [0]


def test_rows_know_their_stream_and_episode(table: Table) -> None:
    with table.writer() as writer:
        for number in range(6):
            writer.append(**row(number))
            if number in (1, 3):
                writer.end_episode()
        assert writer[0].episode == 2
    read = table.read(np.arange(6))
    assert read.streams.tolist() == [writer[0].number] * 6
    assert read.episodes.tolist() == [0, 0, 1, 1, 2, 2]
    assert table.writer()[0].number != writer[0].number


def test_priorities_may_be_known_for_some_rows(table: Table) -> None:
    table.insert(rows([0]), priorities=[7.0])
    with table.writer() as writer:
        for number, priority in enumerate([None, 2.0, 3.0, None, 0.0], start=1):
            writer.append(priority=priority, **row(number))
    assert table.read(np.arange(6)).priorities.tolist() == [7.0, 7.0, 2.0, 3.0, 7.0, 0.0]


def test_a_row_may_be_a_mapping(new_table: NewTable) -> None:
    table = new_table(columns={"priority": Column("float32"), "obs/a": Column("int8"), "obs/b": Column("int8")})
    with table.writer() as writer:
        writer.append({"priority": 0.5, "obs": {"a": 1, "b": 2}}, priority=4.0)
        writer.append({"priority": 0.25}, obs={"a": 3, "b": 4})
    read = table.read([0, 1])
    assert read["priority"].tolist() == [0.5, 0.25]
    assert read.priorities.tolist() == [4.0, 4.0]
    assert read["obs"]["b"].tolist() == [2, 4]


def test_a_wrong_row_is_refused_at_once_and_the_writer_goes_on(table: Table) -> None:
    with table.writer() as writer:
        writer.append(**row(0))
        wrong: list[dict[str, Any]] = [
            {"number": 1},
            {**row(1), "more": 1},
            {**row(1), "obs": np.zeros(4, np.float32)},
            {**row(1), "number": 1.5},
        ]
        for given in wrong:
            with pytest.raises(InvalidArgumentError):
                writer.append(**given)
        with pytest.raises(InvalidArgumentError):
            writer.append(priority=-1.0, **row(1))
        writer.append(**row(1))
    assert numbers_in(table) == [0, 1]


@pytest.mark.parametrize("field", ["block_rows", "max_blocks_in_flight", "streams"])
@pytest.mark.parametrize("number", [0, -1, 1.5, "1", True, 1 << 63])
def test_options_out_of_range_are_refused(table: Table, field: str, number: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{field}: expected a whole number from 1 to "):
        table.writer(**{field: number})


@pytest.mark.parametrize("row", [[1], 5, "number"])
def test_a_row_that_is_not_a_mapping_is_refused(table: Table, row: Any) -> None:
    with table.writer() as writer:
        for call in (writer.append, writer[0].append, writer.append_all, writer.end_episode):
            with pytest.raises(InvalidArgumentError, match=r"^columns: expected a mapping of names to values, got "):
                call(row)
        with pytest.raises(InvalidArgumentError, match=r"^columns: expected a mapping of names to values, got "):
            writer.end_episodes([True], row)
    assert len(table) == 0


def test_many_writers_at_once_lose_and_double_nothing(new_table: NewTable) -> None:
    table = new_table(capacity=100_000)
    writers, each = 8, 1500

    def write(first: int) -> None:
        with table.writer(block_rows=64, max_delay_s=0.002) as writer:
            for number in range(first, first + each):
                writer.append(**row(number))

    threads = [threading.Thread(target=write, args=(index * each,)) for index in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arrived = numbers_in(table)
    assert sorted(arrived) == list(range(writers * each))
    for first in range(0, writers * each, each):
        mine = [number for number in arrived if first <= number < first + each]
        assert mine == sorted(mine)


def test_threads_may_share_a_writer(new_table: NewTable) -> None:
    table = new_table(capacity=100_000)
    with table.writer(block_rows=32) as writer:

        def write(first: int) -> None:
            for number in range(first, first + 1000):
                writer.append(priority=1.0 if number % 100 < 50 else None, **row(number))

        threads = [threading.Thread(target=write, args=(index * 1000,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(numbers_in(table)) == list(range(4000))


def test_append_waits_rather_than_grow_while_the_server_is_slow(start_server: StartServer, connect: Connect) -> None:
    server = start_server()
    table = connect(server).create_table("slow", columns=COLUMNS, capacity=100_000)
    writer = table.writer(block_rows=10, max_blocks_in_flight=3)
    writer.append(**row(0))
    writer.flush()
    server.process.send_signal(signal.SIGSTOP)
    appended = [1]

    def append() -> None:
        for number in range(1, 200):
            writer.append(**row(number))
            appended.append(number)

    thread = threading.Thread(target=append)
    thread.start()
    wait_until(lambda: writer.in_flight == 40, "three blocks were on their way and one was full")
    thread.join(0.3)
    assert thread.is_alive()
    assert writer.in_flight == 40
    with pytest.raises(DeadlineExceededError):
        writer.flush(timeout_s=0.1)
    server.process.send_signal(signal.SIGCONT)
    thread.join()
    writer.close()
    assert numbers_in(table) == list(range(200))


def test_a_writer_of_a_dropped_table_says_so_and_keeps_its_rows(table: Table) -> None:
    writer = table.writer()
    writer.append(**row(0))
    writer.flush()
    table.drop()
    writer.append(**row(1))
    with pytest.raises(TableNotFoundError):
        writer.flush()
    with pytest.raises(TableNotFoundError):
        writer.append(**row(2))
    with pytest.raises(TableNotFoundError):
        writer.end_episode()
    kept = writer.unacknowledged_rows()
    assert kept["number"].tolist() == [1]
    assert_whole(kept)
    with pytest.raises(TableNotFoundError):
        writer.close()
    with pytest.raises(ClosedError):
        writer.append(**row(3))


def test_a_writer_of_a_table_made_anew_says_so(client: ReplayClient, table: Table) -> None:
    writer = table.writer(block_rows=4)
    client.drop_table(table.name)
    again = client.create_table(table.name, columns=COLUMNS, capacity=1000)
    for number in range(6):
        writer.append(**row(number))
    with pytest.raises(TableReplacedError):
        writer.close()
    kept = writer.unacknowledged_rows()
    assert kept["number"].tolist() == list(range(6))
    assert again.insert(kept).tolist() == list(range(6))


def test_an_error_of_the_block_is_not_hidden(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        with table.writer(max_delay_s=60.0) as writer:
            writer.append(**row(0))
            table.drop()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "1 rows of table" in caplog.text


def test_a_writer_ends_with_its_client(server: ServerProcess, table: Table, data_path: str) -> None:
    client = ReplayClient(server.address, **ways(data_path))
    writer = client.table(table.name).writer(max_delay_s=0.0)
    writer.append(**row(0))
    writer.flush()
    client.close()
    with pytest.raises(ClosedError):
        writer.append(**row(1))


def test_writers_that_were_forgotten_go_on(start_server: StartServer, connect: Connect) -> None:
    kept_by_the_server = 4096
    client = connect(server := start_server())
    table = client.create_table("forgotten", columns=COLUMNS, capacity=100_000)
    with table.writer() as writer:
        writer.append(**row(0))
        writer.flush()
        table.insert(rows([1]))
        forget(server, table, kept_by_the_server)
        writer.append(**row(2))
        writer.end_episode()
        writer.append(**row(3))
        writer.flush()
        assert table.insert(rows([4])).tolist() == [kept_by_the_server + 4]
    numbers = numbers_in(table)
    assert [*numbers[:2], *numbers[-3:]] == [0, 1, 2, 3, 4]


def forget(server: ServerProcess, table: Table, count: int) -> None:
    """Let ``count`` other writers insert one row each."""
    values = rows([9])
    packed = b"".join(np.asarray(values[name], column.dtype).tobytes() for name, column in COLUMNS.items())
    with Caller(server.address) as caller:
        for number in range(count):
            caller.stub.Insert(
                replay_pb2.InsertRequest(
                    table=table.name,
                    writer_id=number.to_bytes(16, "little"),
                    insertion=replay_pb2.Insertion(row_count=1, sequence=1),
                    rows=packed,
                )
            )


def test_rows_that_were_not_sent_yet_are_unacknowledged(table: Table) -> None:
    with table.writer(block_rows=100, min_delay_s=60, max_delay_s=60) as writer:
        for number in range(3):
            writer.append(**row(number))
        kept = writer.unacknowledged_rows()
    assert kept["number"].tolist() == [0, 1, 2]
    assert_whole(kept)
    assert writer.acknowledged == 3


def test_a_writer_on_the_servers_host_uses_the_local_socket_and_elsewhere_grpc(table: Table, data_path: str) -> None:
    with table.writer() as writer:
        writer.append(**row(0))
        writer.flush()
        stream = writer._delivery._stream._stream
        assert isinstance(stream, SentFrames if data_path == SAME_HOST else PulledMessages)


def test_a_writer_without_a_local_socket_uses_grpc(start_server: StartServer, connect: Connect) -> None:
    client = connect(start_server("--max-local-connections", "1"))
    table = client.create_table("t", columns=COLUMNS, capacity=1000)
    with table.writer() as first, table.writer() as second:
        for number, writer in enumerate((first, second)):
            writer.append(**row(number))
            writer.flush()
    assert numbers_in(table) == [0, 1]


@wire_only
def test_a_table_without_steps_does_not_take_how_episodes_end(table: Table) -> None:
    with table.writer(streams=2) as writer:
        writer.append_all({name: np.stack([value] * 2) for name, value in row(1).items()})
        with pytest.raises(InvalidArgumentError, match=r"^terminated: expected False, because a table without steps"):
            writer[0].end_episode(terminated=True)
        with pytest.raises(InvalidArgumentError, match=r"^terminated: expected False, because a table without steps"):
            writer.end_episodes([True, True], terminated=[False, True])
        writer.end_episodes([True, True])
    assert len(table) == 2


@pytest.mark.parametrize("options", [{"samples_per_insert": 1.0, "error_buffer": 100.0}, {"backend": "fifo"}])
def test_an_actor_is_only_a_few_rows_ahead_of_the_draws_that_its_inserts_wait_for(
    options: dict[str, Any], server: ServerProcess, connect: Connect
) -> None:
    """Those rows are steps of an old policy."""
    table = connect(server).create_table(f"ahead-{len(options)}", columns=COLUMNS, capacity=100, **options)
    appended = 0

    def append() -> None:
        nonlocal appended
        for number in range(1000):
            writer.append(**row(number))
            appended += 1

    writer = table.writer()
    thread = threading.Thread(target=append)
    thread.start()
    wait_until(lambda: appended >= 2 * DELAYED_BLOCK_ROWS, "the writer was full")
    thread.join(0.5)
    ahead = appended
    while thread.is_alive():
        with suppress(LimitedError):  # the next rows are on their way
            table.sample(10)
        thread.join(0.001)
    writer.abort()
    assert ahead <= 100 + 3 * DELAYED_BLOCK_ROWS + 1  # stored, two blocks on their way, and one that is collected


def test_rows_can_be_given_up_while_their_stream_is_opened(
    new_table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_sent = threading.Event()
    open_stream = AnsweredStream._open

    def opened_late(self: AnsweredStream[Any], token: object) -> Stream:
        stream = open_stream(self, token)
        wait_until(lambda: not self.pending.has_unsent, "the row has been sent")
        has_sent.set()
        wait_until(lambda: self.is_closed, "the stream is closed")
        return stream

    monkeypatch.setattr(AnsweredStream, "_open", opened_late)
    writer = new_table().writer(block_rows=1)
    writer.append(row(7))
    assert has_sent.wait(timeout=30)
    (block,) = writer._give_up()
    assert block.count == 1
