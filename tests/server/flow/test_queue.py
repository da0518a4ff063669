"""The backend fifo: order, limited repeats, inserts waiting for room."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from replay_proto.owner import read_owner
from replay_proto.v1 import replay_pb2

from tests.support.caller import CALL_TIMEOUT_S, CalledTable, Caller, LearnStream, WriteStream, make_draw
from tests.support.flow import wait_for_waiting
from tests.support.refusals import refused
from tests.support.rows import values_in
from tests.support.server_process import ServerProcess

NewTable = Callable[..., CalledTable]
StartServer = Callable[..., ServerProcess]
Call = Callable[[ServerProcess], Caller]
WRITER = b"0123456789abcdef"


@pytest.fixture
def queue(new_table: NewTable) -> CalledTable:
    """A queue of ten rows."""
    return new_table(capacity=10, backend="fifo")


def test_rows_go_out_oldest_first_and_once(queue: CalledTable) -> None:
    queue.insert(range(7), [3.0, 9.0, 0.0, 1.0, 5.0, 0.0, 2.0])
    assert queue.sample(3).values.tolist() == [0, 1, 2]
    assert queue.sample(4).values.tolist() == [3, 4, 5, 6]
    with refused("TABLE_EMPTY"):
        queue.sample(1)
    stats = queue.stats()
    assert (stats.table.size, stats.evicted, stats.sampled) == (0, 7, 7)


def test_probabilities_and_weights_are_one(queue: CalledTable) -> None:
    queue.insert(range(9), np.arange(9.0))
    for norm in (replay_pb2.WEIGHT_NORM_BATCH, replay_pb2.WEIGHT_NORM_TABLE):
        batch = queue.sample(3, beta=0.7, weight_norm=norm)
        assert batch.probabilities.tolist() == [1.0] * 3
        assert batch.weights.tolist() == [1.0] * 3
        assert batch.batch.smallest_probability == 1.0


def test_priorities_are_kept_while_rows_are_there(queue: CalledTable) -> None:
    keys = queue.insert(range(4), [1.0, 2.0, 3.0, 4.0])
    queue.sample(2)
    result = queue.update(keys, [5.0, 6.0, 7.0, 8.0])
    assert (result.updated, result.stale) == (2, 2)
    assert queue.read(keys).priorities.tolist() == [7.0, 8.0]
    assert queue.stats().largest_priority == 8.0


def test_a_batch_waits_for_all_of_its_rows(queue: CalledTable) -> None:
    queue.insert(range(3))
    with refused("LIMITED", waited_for="rows"):
        queue.sample(5)
    with refused("WAITED_TOO_LONG", waited_for="rows"):
        queue.sample(5, wait_s=0.05)
    draw = queue.begin_sample(5)
    wait_for_waiting(queue, 1)
    queue.insert([3])
    assert not draw.done()
    queue.insert([4, 5])
    assert values_in(draw.result().rows).tolist() == [0, 1, 2, 3, 4]
    assert queue.sample(1).values.tolist() == [5]


def test_batches_of_one_message_follow_each_other(queue: CalledTable) -> None:
    queue.insert(range(10))
    stream = LearnStream(queue)
    _, batches = stream.ask(draw=make_draw(3), batches=3)
    assert [batch.values.tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    stream.close()


def test_a_draw_of_more_than_a_full_queue_is_refused(new_table: NewTable) -> None:
    queue = new_table(capacity=10, backend="fifo")
    with refused("TOO_LARGE", bound="rows of one draw", limit=10, got=11):
        queue.sample(11, wait_s=1.0)
    thrice = new_table(capacity=10, backend="fifo", parameters={"max_times_sampled": 3})
    with refused("TOO_LARGE", limit=28, got=29):
        thrice.sample(29, wait_s=1.0)


def test_inserts_wait_when_it_is_full(queue: CalledTable) -> None:
    queue.insert(range(8))
    with refused("LIMITED", waited_for="room"):
        queue.insert(range(8, 11), wait_s=0.0)
    with refused("WAITED_TOO_LONG", waited_for="room"):
        queue.insert(range(8, 11), wait_s=0.05)
    insert = queue.begin_insert(range(8, 11))
    wait_for_waiting(queue, 1)
    assert queue.stats().waiting_inserts == 1
    assert queue.sample(1).values.tolist() == [0]
    assert insert.result().keys[0].first == 8
    assert queue.sample(10).values.tolist() == list(range(1, 11))


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(("rows", "batch"), [(60, 60), (17, 43)])
def test_draws_and_inserts_never_wait_for_each_other(new_table: NewTable, rows: int, batch: int, times: int) -> None:
    # A larger draw is refused: when the oldest row is almost used up, it might never be allowed.
    batch = min(batch, 59 * times + 1)
    queue = new_table(capacity=60, backend="fifo", parameters={"max_times_sampled": times})
    inserts = [queue.begin_insert(range(start, start + rows)) for start in range(0, 600 // rows * rows, rows)]
    deliveries = np.repeat(np.arange(600 // rows * rows), times)
    drawn: list[int] = []
    while len(drawn) + batch <= len(deliveries):
        drawn += queue.sample(batch, wait_s=CALL_TIMEOUT_S).values.tolist()
    for insert in inserts:
        insert.result()
    # Calls that start simultaneously may arrive in any order.
    assert Counter(Counter(drawn).values())[times] >= len(drawn) // times - 1
    assert len(drawn) == len(deliveries) // batch * batch


def test_rows_that_a_draw_held_while_it_waited_go_to_the_next(queue: CalledTable) -> None:
    queue.insert(range(6))
    draw = queue.begin_sample(10)
    wait_for_waiting(queue, 1)
    queue.insert(range(6, 9), wait_s=0.0)
    with refused("LIMITED", waited_for="rows"):
        queue.sample(1)
    draw.cancel()
    wait_for_waiting(queue, 0)
    assert queue.sample(9).values.tolist() == list(range(9))


def test_an_insert_of_more_than_it_holds_is_refused(queue: CalledTable) -> None:
    with refused("TOO_LARGE", bound="rows of one insert", limit=10, got=11):
        queue.insert(range(11))
    queue.insert(range(10))


def test_it_goes_on_for_many_turns_of_its_ring(queue: CalledTable) -> None:
    drawn: list[int] = []
    for start in range(0, 900, 9):
        queue.insert(range(start, start + 9), wait_s=0.0)
        drawn += queue.sample(9).values.tolist()
    assert drawn == list(range(900))


def test_large_batches_come_whole(new_table: NewTable) -> None:
    # More rows than the ring's slack.
    queue = new_table(capacity=30_000, backend="fifo")
    queue.insert(np.arange(30_000))
    learner = queue.begin_sample(20_000)
    inserts = [queue.begin_insert(np.arange(start, start + 400)) for start in range(30_000, 50_000, 400)]
    assert values_in(learner.result().rows).tolist() == list(range(20_000))
    for insert in inserts:
        insert.result()
    assert sorted(queue.sample(30_000).values.tolist()) == list(range(20_000, 50_000))


def test_many_producers_and_consumers_share_it_without_loss_or_repeat(
    server: ServerProcess, new_table: NewTable
) -> None:
    queue = new_table(capacity=50, backend="fifo")
    drawn: list[list[int]] = [[] for _ in range(3)]

    def produce(producer: int) -> None:
        with Caller(server.address) as caller:
            stream = WriteStream(queue.through(caller), bytes([producer]) * 16)
            for sequence in range(1, 101):
                stream.write(producer * 10_000 + np.arange(sequence * 9, sequence * 9 + 9), sequence)
            stream.close()

    def consume(consumer: int) -> None:
        with Caller(server.address) as caller:
            table = queue.through(caller)
            for _ in range(100):
                drawn[consumer] += table.sample(9, wait_s=CALL_TIMEOUT_S).values.tolist()

    threads = [threading.Thread(target=target, args=(i,)) for target in (produce, consume) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = Counter(p * 10_000 + value for p in range(3) for value in range(9, 909))
    assert Counter(value for each in drawn for value in each) == expected
    # Each consumer receives the rows of one producer in order.
    for values in drawn:
        for producer in range(3):
            own = [value for value in values if value // 10_000 == producer]
            assert own == sorted(own)


def test_rows_that_went_out_stay_gone_after_a_kill(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"))
    queue = call(server).create(capacity=10, backend="fifo", parameters={"max_times_sampled": 3})
    queue.insert(range(10))
    queue.sample(4)
    server.kill()
    server.restart()
    again = call(server).table(queue.name)
    assert again.describe().size == 9
    assert again.sample(5).values.tolist() == [1, 1, 2, 2, 2]


def test_a_client_on_the_same_host_is_sent_the_rows(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    """A queue removes rows when they are drawn, so a client could not copy them in time, even from its files."""
    queue = call(start_server("--data-dir", str(tmp_path / "data"))).create(capacity=10, backend="fifo")
    queue.insert(range(3))
    assert queue.describe().directory == ""
    record = read_owner(tmp_path / "data").record
    assert record is not None
    same_host = replay_pb2.SameHost(owner_id=record.id)
    request = replay_pb2.SampleRequest(
        table=queue.name, table_uid=queue.describe().uid, draw=make_draw(3), same_host=same_host
    )
    answer = queue.stub.Sample(request)
    assert values_in(answer.rows).tolist() == [0, 1, 2]
