"""Calls waiting for a rate limiter: their order, and how waits end."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from replay_proto.rate_limit import RateLimit
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2
from replay_server import auth as callers
from replay_server.errors import RequestError
from replay_server.flow.admission import Admission, Limits
from replay_server.flow.budgets import Budget
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.table import NewRows, Table

from tests.support.caller import CALL_TIMEOUT_S, CalledTable, Caller, LearnStream, WriteStream, make_draw, make_update
from tests.support.deadlines import wait_until
from tests.support.flow import rate_limiter, wait_for_waiting
from tests.support.refusals import refused
from tests.support.rows import WHOLE
from tests.support.server_process import ServerProcess

NewTable = Callable[..., CalledTable]
StartServer = Callable[..., ServerProcess]
Call = Callable[[ServerProcess], Caller]
WRITER = b"0123456789abcdef"


@pytest.fixture
def even(new_table: NewTable) -> CalledTable:
    """A table with one sample per insert after 10 rows, and an error buffer of 5 samples."""
    return new_table(rate_limiter=rate_limiter(10, 1.0, 5.0))


def sample_near(table: CalledTable, batch_size: int, *, overtaken: bool = False) -> replay_pb2.SampleResponse:
    """Draw a batch like a client on the server's host."""
    described = table.describe()
    near = replay_pb2.SameHost(owner_id=described.owner_id, overtaken=overtaken)
    return table.stub.Sample(
        replay_pb2.SampleRequest(table=table.name, table_uid=described.uid, draw=make_draw(batch_size), same_host=near)
    )


def test_a_draw_without_a_wait_says_what_it_lacks(even: CalledTable) -> None:
    with refused("TABLE_EMPTY"):
        even.sample(1)
    even.insert(range(9))
    with refused("LIMITED", table=even.name, waited_for="rows"):
        even.sample(1)
    even.insert([9])
    even.sample(5)
    before = even.state()
    with refused("LIMITED", table=even.name, waited_for="samples"):
        even.sample(1)
    assert even.state() == before
    even.insert([10])
    even.sample(1)


def test_an_insert_without_a_wait_says_what_it_lacks(even: CalledTable) -> None:
    even.insert(range(15))
    before = even.state()
    with refused("LIMITED", table=even.name, waited_for="inserts"):
        even.insert([15], wait_s=0.0)
    assert even.state() == before
    even.sample(1)
    even.insert([15], wait_s=0.0)


def test_a_limiter_whose_arithmetic_would_overflow_is_not_made(new_table: NewTable) -> None:
    for field, ratio, lower, upper in (
        ("samples_per_insert", 8e307, 0.0, 1.7e308),
        ("error_buffer", 1.0, -9e307, 9e307),
    ):
        limiter = replay_pb2.RateLimiter(min_size=1, samples_per_insert=ratio, min_diff=lower, max_diff=upper)
        with refused("INVALID_FIELD", field=field):
            new_table(rate_limiter=limiter)


def test_a_draw_waits_until_rows_come(even: CalledTable) -> None:
    even.insert(range(9))
    draw = even.begin_sample(3)
    wait_for_waiting(even, 1)
    even.insert([9])
    assert len(draw.result().batch.keys) == 3 * 8
    stats = even.stats()
    assert (stats.waiting, stats.waited) == (0, 1)
    assert (stats.rate_limiter.inserted, stats.rate_limiter.sampled, stats.rate_limiter.difference) == (10, 3, 7.0)


def test_an_insert_waits_until_rows_are_drawn(even: CalledTable) -> None:
    even.insert(range(15))
    insert = even.begin_insert([15, 16])
    wait_for_waiting(even, 1)
    assert even.stats().waiting_inserts == 1
    even.sample(1)
    assert even.stats().table.inserted == 15
    even.sample(1)
    assert insert.result().keys[0].first == 15
    assert even.stats().waiting_inserts == 0


def test_a_batch_larger_than_the_limit_is_wide_comes_as_rows_do(even: CalledTable) -> None:
    even.insert(range(10))
    draw = even.begin_sample(40)
    wait_for_waiting(even, 1)
    # Each insert is allowed by the samples previously granted to the draw.
    for value in range(10, 44):
        assert not draw.done()
        even.insert([value], wait_s=CALL_TIMEOUT_S)
    even.insert([44], wait_s=CALL_TIMEOUT_S)
    assert len(draw.result().batch.keys) == 40 * 8
    assert even.stats().rate_limiter.sampled == 40


def test_what_a_draw_was_allowed_is_given_back_when_it_leaves(even: CalledTable) -> None:
    even.insert(range(10))
    draw = even.begin_sample(40)
    wait_for_waiting(even, 1)
    assert even.stats().rate_limiter.sampled == 5
    draw.cancel()
    wait_for_waiting(even, 0)
    assert even.stats().rate_limiter.sampled == 0
    even.sample(5)


def test_what_a_draw_was_allowed_is_given_back_when_the_server_is_killed(
    start_server: StartServer, call: Call, tmp_path: Path
) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"))
    table = call(server).create(rate_limiter=rate_limiter(10, 1.0, 5.0))
    table.insert(range(10))
    table.sample(2)
    draw = table.begin_sample(40)
    wait_for_waiting(table, 1)
    assert table.stats().rate_limiter.sampled == 5
    server.kill()
    with pytest.raises(grpc.RpcError):
        draw.result()
    server.restart()
    again = table.through(call(server))
    assert again.stats().rate_limiter.sampled == 2
    again.sample(3)


def test_an_insert_that_could_never_be_allowed_is_refused(even: CalledTable) -> None:
    even.insert(range(10))
    with refused("TOO_LARGE", bound="rows of one insert", limit=9, got=10) as refusal:
        even.insert(range(10))
    assert "error_buffer" in refusal.metadata["setting"]


def test_rows_that_lead_beyond_min_size_are_let_in(even: CalledTable) -> None:
    even.insert(range(8))
    even.insert(range(9), wait_s=0.0)
    assert even.stats().rate_limiter.difference == 17.0


def test_draws_are_served_in_the_order_in_which_they_came(even: CalledTable) -> None:
    even.insert(range(10))
    even.sample(5)
    draws = []
    for rows in (3, 1, 2):
        draws.append(even.begin_sample(rows))
        wait_for_waiting(even, len(draws))
    for value, done in enumerate([0, 0, 1, 2, 2, 3]):
        with refused("LIMITED", waited_for="samples"):
            even.sample(1)  # a call that does not wait must not overtake others either
        even.insert([value])
        wait_for_waiting(even, 3 - done)
    assert [len(draw.result().batch.keys) // 8 for draw in draws] == [3, 1, 2]


def test_inserts_are_applied_in_the_order_in_which_they_came(even: CalledTable) -> None:
    even.insert(range(15))
    inserts = []
    for values in ([100, 101, 102], [103], [104]):
        inserts.append(even.begin_insert(values))
        wait_for_waiting(even, len(inserts))
    even.sample(5)
    assert [insert.result().keys[0].first for insert in inserts] == [15, 18, 19]
    assert even.read(range(15, 20)).values.tolist() == [100, 101, 102, 103, 104]


def test_those_behind_go_on_when_the_first_gives_up(even: CalledTable) -> None:
    even.insert(range(15))
    large = even.begin_insert(range(9))
    wait_for_waiting(even, 1)
    small = even.begin_insert([42])
    wait_for_waiting(even, 2)
    even.sample(1)
    large.cancel()
    assert small.result().keys[0].first == 15


@pytest.mark.parametrize("wait_s", [1e-9, 0.1])
def test_a_deadline_names_what_was_waited_for(even: CalledTable, wait_s: float) -> None:
    even.insert(range(9))
    with refused("WAITED_TOO_LONG", table=even.name, waited_for="rows"):
        even.sample(1, wait_s=wait_s)
    even.insert(range(6))
    before = even.read(even.live_keys()).values.tolist()
    with refused("WAITED_TOO_LONG", table=even.name, waited_for="inserts"):
        even.insert([1], wait_s=wait_s)
    assert even.read(even.live_keys()).values.tolist() == before
    even.sample(10)
    with refused("WAITED_TOO_LONG", table=even.name, waited_for="samples"):
        even.sample(1, wait_s=wait_s)
    assert even.stats().waiting == 0
    assert even.stats().rate_limiter.sampled == 10


def test_a_learner_waits_on_its_stream_after_its_update(even: CalledTable) -> None:
    even.insert(range(10))
    stream = LearnStream(even)
    stream.ask(draw=make_draw(5))
    stream.send(update=make_update([3], [7.0]), draw=make_draw(2, wait_s=CALL_TIMEOUT_S), batches=2)
    wait_for_waiting(even, 1)
    assert even.read([3]).priorities.tolist() == [7.0]
    for value in range(4):
        even.insert([value])
    assert len(stream.receive().batches) == 2
    stream.close()


def test_a_learner_that_does_not_wait_is_refused_before_its_update(even: CalledTable) -> None:
    even.insert(range(10))
    even.sample(5)
    stream = LearnStream(even)
    stream.send(update=make_update([3], [7.0]), draw=make_draw(1))
    with refused("LIMITED", waited_for="samples"):
        stream.receive()
    assert even.read([3]).priorities.tolist() == [1.0]


def test_a_writers_stream_waits_and_holds_no_other(even: CalledTable, table: CalledTable) -> None:
    even.insert(range(15))
    held, free = WriteStream(even, WRITER), WriteStream(table, WRITER)
    held.send([100, 101], 1)
    held.send([102], 2)
    wait_for_waiting(even, 1)
    for sequence in range(1, 20):
        free.write([sequence], sequence)
    even.sample(3)
    assert [held.receive().keys[0].first for _ in range(2)] == [15, 17]
    held.close()
    free.close()


def test_a_repeat_of_an_insert_that_was_applied_does_not_wait(even: CalledTable) -> None:
    keys = even.insert(range(15), writer_id=WRITER, sequence=1)
    assert even.insert(range(15), writer_id=WRITER, sequence=1, wait_s=0.0).tolist() == keys.tolist()


def test_a_writer_that_reconnects_while_it_waits_is_applied_once(even: CalledTable) -> None:
    even.insert(range(15))
    streams = [WriteStream(even, WRITER) for _ in range(2)]
    for waiting, stream in enumerate(streams, start=1):
        stream.send([100, 101], 1)
        wait_for_waiting(even, waiting)
    even.sample(4)
    assert [stream.receive().keys[0].first for stream in streams] == [15, 15]
    assert even.stats().table.inserted == 17


def test_a_learners_copy_that_was_overtaken_is_replaced_without_another_sample(even: CalledTable) -> None:
    """Whatever the limiter allows, because the replaced batch was already counted."""
    even.insert(range(10))
    stream = LearnStream(even)
    owner_id = even.describe().owner_id
    copied, again = (replay_pb2.SameHost(owner_id=owner_id, overtaken=overtaken) for overtaken in (False, True))
    stream.send(draw=make_draw(1), batches=4, same_host=copied)
    assert stream.receive().rows == b""
    even.sample(1)
    for batches in (1, 3):
        stream.send(draw=make_draw(1), batches=batches, same_host=again)
        _, drawn = stream.receive_batches()
        assert [len(batch.values) for batch in drawn] == [1] * batches
    assert even.stats().rate_limiter.sampled == 5
    stream.send(draw=make_draw(1), same_host=again)
    with refused("LIMITED", waited_for="samples"):
        stream.receive()


def test_a_copy_that_was_overtaken_is_replaced_without_another_sample(even: CalledTable) -> None:
    even.insert(range(10))
    assert sample_near(even, 5).rows == b""
    assert len(sample_near(even, 5, overtaken=True).rows) == 5 * WHOLE.row_bytes
    assert even.stats().rate_limiter.sampled == 5
    with refused("LIMITED", waited_for="samples"):
        sample_near(even, 5, overtaken=True)


def test_only_a_counted_batch_is_replaced_without_another_sample(even: CalledTable) -> None:
    """Not one of another size, one that had its rows, or one from before a reset."""
    even.insert(range(10))
    sample_near(even, 4)
    even.reset()
    even.insert(range(10))
    sample_near(even, 3)
    even.sample(2)
    for batch_size in (1, 2, 4):
        with refused("LIMITED", waited_for="samples"):
            sample_near(even, batch_size, overtaken=True)
    assert even.stats().overtaken == 0


@pytest.mark.parametrize("owner_id", [b"", bytes(16)])
def test_the_limiter_counts_who_only_says_that_a_copy_was_overtaken(even: CalledTable, owner_id: bytes) -> None:
    even.insert(range(10))
    even.sample(5)
    uid = even.describe().uid
    again = replay_pb2.SameHost(owner_id=owner_id, overtaken=True)
    with refused("LIMITED", waited_for="samples"):
        even.stub.Sample(replay_pb2.SampleRequest(table=even.name, table_uid=uid, draw=make_draw(5), same_host=again))
    stream = LearnStream(even)
    stream.send_message(replay_pb2.LearnRequest(table=even.name, draw=make_draw(5), same_host=again))
    with refused("LIMITED", waited_for="samples"):
        stream.receive()
    assert even.stats().rate_limiter.sampled == 5
    assert even.stats().overtaken == 0


def test_over_a_long_run_each_row_is_sampled_so_often(new_table: NewTable) -> None:
    table = new_table(capacity=500, rate_limiter=rate_limiter(50, 4.0, 100.0))
    inserts = [table.begin_insert(range(20)) for _ in range(50)]
    draws = [table.begin_sample(64, CALL_TIMEOUT_S) for _ in range(60)]
    for draw in draws:
        draw.result()
    for insert in inserts:
        insert.result()
    stands = table.stats().rate_limiter
    assert (stands.inserted, stands.sampled) == (1000, 3840)
    assert 100.0 <= stands.difference <= 300.0


@pytest.fixture
def blocked(even: CalledTable) -> Iterator[tuple[CalledTable, list[Callable[[], object]]]]:
    """A table with waiting inserts of both kinds, and functions that return their outcomes."""
    even.insert(range(15))
    writer = WriteStream(even, WRITER)
    writer.send([1, 2], 1)
    wait_for_waiting(even, 1)
    insert = even.begin_insert([3])
    wait_for_waiting(even, 2)
    yield even, [writer.receive, insert.result]
    writer.close()


def test_a_reset_sends_those_who_wait_away(blocked: tuple[CalledTable, list[Callable[[], object]]]) -> None:
    table, ends = blocked
    assert table.reset() == 15
    for end in ends:
        with refused("TABLE_RESET", table=table.name):
            end()
    stats = table.stats()
    assert (stats.table.inserted, stats.table.size, stats.waiting) == (15, 0, 0)
    assert (stats.rate_limiter.inserted, stats.rate_limiter.sampled) == (0, 0)
    assert table.insert([5], writer_id=WRITER, sequence=1).tolist() == [15]


def test_a_drop_sends_those_who_wait_away(blocked: tuple[CalledTable, list[Callable[[], object]]]) -> None:
    table, ends = blocked
    table.drop()
    for end in ends:
        with refused("TABLE_NOT_FOUND", table=table.name):
            end()


@pytest.mark.parametrize("kind", ["Sample", "Learn"])
def test_draws_that_wait_are_sent_away_by_a_reset(even: CalledTable, kind: str) -> None:
    even.insert(range(10))
    if kind == "Sample":
        end: Callable[[], object] = even.begin_sample(30).result
    else:
        stream = LearnStream(even)
        stream.send(draw=make_draw(30, wait_s=CALL_TIMEOUT_S))
        end = stream.receive
    wait_for_waiting(even, 1)
    even.reset()
    with refused("TABLE_RESET"):
        end()
    assert even.stats().rate_limiter.sampled == 0


def test_a_server_that_ends_sends_those_who_wait_away_without_effect(
    start_server: StartServer, call: Call, tmp_path: object
) -> None:
    server = start_server("--data-dir", f"{tmp_path}/data")
    table = call(server).create(rate_limiter=rate_limiter(10, 1.0, 5.0))
    table.insert(range(15))
    writer = WriteStream(table, WRITER)
    writer.send([1, 2], 1)
    insert = table.begin_insert([3])
    wait_for_waiting(table, 2)
    server.process.send_signal(signal.SIGTERM)
    for end in (writer.receive, insert.result):
        with refused("SHUTTING_DOWN"):
            end()
    assert server.wait() == 0
    assert "Traceback" not in server.log()
    server.restart()
    again = call(server).table(table.name)
    assert again.read(again.live_keys()).values.tolist() == list(range(15))
    again.sample(5)
    assert again.insert([1, 2], writer_id=WRITER, sequence=1).tolist() == [15, 16]


def test_too_many_bytes_that_wait_are_refused(start_server: StartServer, call: Call) -> None:
    server = start_server("--max-waiting-mb", "1", "--caller-share", "1")
    table = call(server).create(capacity=30_000, backend="fifo")
    table.insert(range(30_000))
    first = table.begin_insert(range(400))
    wait_for_waiting(table, 1)
    calls = [table.begin_insert(range(400)) for _ in range(92)]
    wait_for_waiting(table, 93)
    with refused("TOO_LARGE", bound="bytes of waiting inserts", limit=1 << 20) as refusal:
        table.insert(range(400))
    assert "max_waiting_mb" in refusal.metadata["setting"]
    for _ in (first, *calls):
        table.sample(400)
    for insert in (first, *calls):
        insert.result()


def test_nobody_waits_longer_than_the_server_lets_them(start_server: StartServer, call: Call) -> None:
    caller = call(start_server("--max-wait-s", "0.2"))
    empty, full = caller.create(), caller.create(capacity=10, backend="fifo")
    full.insert(range(10))
    for wait_s in (math.inf, 60.0):
        with refused("WAITED_TOO_LONG", waited_for="rows"):
            empty.sample(1, wait_s=wait_s)
    with refused("WAITED_TOO_LONG", waited_for="room"):
        full.insert([1])
    with refused("WAITED_TOO_LONG", waited_for="room") as refusal:
        full.insert([1], wait_s=0.01)
    assert "waited 0.01 s" in refusal.message


def test_too_many_waiting_calls_are_refused(start_server: StartServer, call: Call) -> None:
    server = start_server("--max-waiting-calls", "3", "--caller-share", "1")
    table = call(server).create()
    draws = [table.begin_sample(1) for _ in range(3)]
    wait_for_waiting(table, 3)
    with refused("TOO_LARGE", bound="waiting calls", limit=3, got=4) as refusal:
        table.sample(1, wait_s=10.0)
    assert "max_waiting_calls" in refusal.metadata["setting"]
    table.insert([1])
    for draw in draws:
        assert len(draw.result().batch.keys) == 8
    wait_until(lambda: table.stats().waiting == 0, "nobody waits")


def test_a_draw_that_was_let_on_is_sent_away_by_a_reset_before_it_goes_on(tmp_path: Path) -> None:
    """A granted call continues in a later turn of the event loop, so another call may run first."""
    limit = RateLimit(min_size=1, samples_per_insert=1.0, min_diff=0.0, max_diff=10.0)
    config = TableConfig("table", Schema({"value": Column("int64")}), capacity=10, rate_limit=limit)
    table = Table(TableDirectory.create(tmp_path, config))
    limits = Limits(Budget("calls", "a setting", 10, 1.0), Budget("bytes", "a setting", 1 << 20, 1.0))
    admission = Admission(table, limits)

    async def let_one_on_and_reset() -> None:
        draw = asyncio.create_task(admission.draw(callers.Caller(), 1, math.inf))
        await asyncio.sleep(0)
        table.insert(NewRows({"value": np.zeros(1, np.int64)}, 1), None)
        admission.changed()
        table.reset()
        with pytest.raises(RequestError) as refusal:
            await draw
        assert refusal.value.reason == replay_pb2.ERROR_REASON_TABLE_RESET

    asyncio.run(let_one_on_and_reset())
    assert table.gate is not None
    assert table.gate.grant(1) == 0, "nothing is given back that was not taken"
    table.close()


def test_rows_that_are_evicted_still_count_as_inserted(new_table: Callable[..., CalledTable]) -> None:
    table = new_table(capacity=3, rate_limiter=rate_limiter(2, 1.0, (-2.0, 6.0)))
    for _ in range(6):
        table.insert([0], wait_s=0.0)
    assert table.describe().size == 3
    with refused("LIMITED"):
        table.insert([0], wait_s=0.0)
    table.sample(8)
    with refused("LIMITED"):
        table.sample(1)


def test_a_reset_clears_rows_and_limiter(new_table: Callable[..., CalledTable]) -> None:
    table = new_table(rate_limiter=rate_limiter(1, 1.0, (-1.0, 1.0)))
    table.insert([1])
    with refused("LIMITED"):
        table.insert([0], wait_s=0.0)
    table.reset()
    assert table.describe().size == 0
    table.insert([0], wait_s=0.0)
