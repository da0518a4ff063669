"""Conformance with Reverb's behavior where it applies.

Reverb's item is a row here, and a sample of an item is a row of a batch. Rows are evicted first in, first out, or
removed from a queue when drawn. Intended differences are at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import grpc
import numpy as np
import pytest
from replay_proto.v1 import replay_pb2

from tests.support.caller import CALL_TIMEOUT_S, CalledTable, Caller, make_draw
from tests.support.flow import rate_limiter, wait_for_waiting
from tests.support.refusals import refusal_in, refused
from tests.support.server_process import ServerProcess

NewTable = Callable[..., CalledTable]
PRIORITIZED = {"backend": "sum_tree", "parameters": {"alpha": 1.0, "epsilon": 0.0}}


def blocks(draw_or_insert: Callable[[], object]) -> bool:
    """Whether a call without waiting is refused because it would have to wait."""
    try:
        draw_or_insert()
    except grpc.RpcError as error:
        return refusal_in(error).reason == "LIMITED"
    return False


def inserting(table: CalledTable) -> Callable[[], object]:
    """Return a function that inserts one row without waiting."""
    return lambda: table.insert([0], wait_s=0.0)


class TestMinSize:
    def test_samples_wait_until_it_is_reached(self, new_table: NewTable) -> None:
        table = new_table(rate_limiter=rate_limiter(2))
        draw = table.begin_sample(1)
        wait_for_waiting(table, 1)
        table.insert([1])
        assert not draw.done()
        table.insert([2])
        assert len(draw.result().batch.keys) == 8

    def test_nothing_else_is_limited(self, new_table: NewTable) -> None:
        table = new_table(rate_limiter=rate_limiter(2))
        table.insert(range(1000), wait_s=0.0)
        for _ in range(100):
            table.sample(100)


class TestSampleToInsertRatio:
    def test_calls_within_the_buffer_do_not_wait(self, new_table: NewTable) -> None:
        table = new_table(rate_limiter=rate_limiter(1, 1.5, (-3.0, 3.1)))
        for _ in range(2):
            table.insert([0], wait_s=0.0)
        for _ in range(6):
            table.sample(1)
        assert table.stats().rate_limiter.difference == -3.0
        assert blocks(lambda: table.sample(1))

    def test_calls_beyond_it_wait_for_each_other(self, new_table: NewTable) -> None:
        table = new_table(rate_limiter=rate_limiter(2, 1.5, (-1.0, 3.0)))
        draw = table.begin_sample(1)
        wait_for_waiting(table, 1)
        table.insert([0])
        assert not draw.done()
        table.insert([1])
        draw.result()
        assert table.stats().rate_limiter.difference == 2.0
        waiting = table.begin_insert([2])
        wait_for_waiting(table, 1)
        table.sample(1)
        waiting.result()

    @pytest.mark.parametrize(("rows", "blocked"), [(1, False), (2, False), (3, True)])
    def test_so_many_samples_are_allowed_at_once(self, new_table: NewTable, rows: int, blocked: bool) -> None:
        table = new_table(rate_limiter=rate_limiter(1, 1.0, 1.0))
        table.insert([0])
        # An error buffer of 1 sets the lower bound to min_size * samples_per_insert - 1 = 0; a pair is used unchanged.
        paired = new_table(rate_limiter=rate_limiter(1, 1.0, (-1.0, 1.0)))
        paired.insert([0])
        assert blocks(lambda: paired.sample(rows)) == blocked
        assert blocks(lambda: table.sample(rows)) == (rows > 1)

    @pytest.mark.parametrize(("rows", "blocked"), [(1, False), (2, False), (3, False)])
    def test_so_many_inserts_are_allowed_at_once(self, new_table: NewTable, rows: int, blocked: bool) -> None:
        table = new_table(rate_limiter=rate_limiter(2, 1.5, (0.0, 5.0)))
        for _ in range(rows):
            assert blocks(inserting(table)) == blocked

    def test_samples_make_room_for_inserts(self, new_table: NewTable) -> None:
        table = new_table(rate_limiter=rate_limiter(2, 1.5, (0.0, 5.0)))
        table.insert(range(2))
        table.insert([2])
        assert blocks(inserting(table))
        table.sample(2)
        assert not blocks(inserting(table))
        assert blocks(inserting(table))

    def test_rows_that_are_evicted_still_count_as_inserted(self, new_table: NewTable) -> None:
        table = new_table(capacity=3, rate_limiter=rate_limiter(2, 1.0, (-2.0, 6.0)))
        for _ in range(6):
            table.insert([0], wait_s=0.0)
        assert table.describe().size == 3
        assert blocks(inserting(table))
        table.sample(8)
        assert blocks(lambda: table.sample(1))

    @pytest.mark.parametrize("buffer", [0.5, (0.0, 1.9), (3.1, 9.0)])
    def test_a_buffer_that_would_block_everything_is_refused(
        self, caller: Caller, buffer: float | tuple[float, float]
    ) -> None:
        lower, upper = buffer if isinstance(buffer, tuple) else (3.0 - buffer, 3.0 + buffer)
        limiter = replay_pb2.RateLimiter(min_size=3, samples_per_insert=1.0, min_diff=lower, max_diff=upper)
        with refused("INVALID_FIELD", field="error_buffer"):
            caller.create(rate_limiter=limiter)

    def test_over_a_long_run_each_row_is_sampled_so_often(self, server: ServerProcess, new_table: NewTable) -> None:
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


class TestQueue:
    def test_a_full_one_blocks_inserts_and_an_empty_one_blocks_samples(self, new_table: NewTable) -> None:
        queue = new_table(capacity=10, backend="fifo")
        for value in range(10):
            queue.insert([value])
        eleventh = queue.begin_insert([10])
        wait_for_waiting(queue, 1)
        assert [queue.sample(1, wait_s=CALL_TIMEOUT_S).values.tolist() for _ in range(11)] == [[i] for i in range(11)]
        eleventh.result()
        assert queue.describe().size == 0
        draw = queue.begin_sample(1)
        wait_for_waiting(queue, 1)
        queue.insert([100])
        draw.result()
        assert queue.describe().size == 0

    def test_a_row_is_gone_after_max_times_sampled(self, new_table: NewTable) -> None:
        queue = new_table(capacity=10, backend="fifo", parameters={"max_times_sampled": 2.0})
        queue.insert([3])
        queue.sample(1)
        assert [(bar.at_least, bar.rows) for bar in queue.stats().times_sampled] == [(1, 1)]
        queue.sample(1)
        assert queue.describe().size == 0


class TestPriorities:
    def test_missing_keys_are_ignored_and_the_others_updated(self, new_table: NewTable) -> None:
        table = new_table(**PRIORITIZED)
        (key,) = table.insert([3], [123.0])
        result = table.update([key + 5, key, -1], [55.0, 456.0, 1.0])
        assert (result.updated, result.stale) == (1, 2)
        assert table.read([key]).priorities.tolist() == [456.0]

    def test_a_row_of_priority_zero_is_never_drawn(self, new_table: NewTable) -> None:
        table = new_table(**PRIORITIZED)
        keys = table.insert(range(4), [0.0, 1.0, 0.0, 2.0])
        batch = table.sample(3000)
        assert set(batch.keys.tolist()) == {keys[1], keys[3]}
        assert set(np.round(batch.probabilities, 12).tolist()) == {round(1 / 3, 12), round(2 / 3, 12)}

    def test_if_all_are_zero_each_is_drawn_alike(self, new_table: NewTable) -> None:
        table = new_table(**PRIORITIZED)
        table.insert(range(4), np.zeros(4))
        batch = table.sample(4000)
        assert batch.probabilities.tolist() == [0.25] * 4000
        assert all(count == 1000 for count in Counter(batch.keys.tolist()).values())

    @pytest.mark.parametrize("bad", [float("nan"), -1.0, float("inf")])
    def test_a_priority_that_is_no_priority_is_refused_and_harms_nothing(self, new_table: NewTable, bad: float) -> None:
        table = new_table(**PRIORITIZED)
        keys = table.insert(range(4), [0.0, 1.0, 0.0, 2.0])
        with refused("INVALID_FIELD", field="priorities"):
            table.update(keys[:1], [bad])
        assert set(table.sample(100).keys.tolist()) == {keys[1], keys[3]}


class TestTables:
    def test_a_sample_is_what_was_inserted(self, new_table: NewTable) -> None:
        table = new_table()
        (key,) = table.insert([123])
        batch = table.sample(1)
        assert (batch.keys.tolist(), batch.values.tolist(), batch.probabilities.tolist()) == ([key], [123], [1.0])

    def test_times_sampled_are_counted(self, new_table: NewTable) -> None:
        table = new_table()
        table.insert([3])
        for times in range(1, 4):
            table.sample(1)
            (bar,) = table.stats().times_sampled
            assert bar.at_least <= times <= bar.at_most

    def test_the_oldest_goes_when_it_overflows(self, new_table: NewTable) -> None:
        table = new_table(capacity=10)
        for value in range(15):
            table.insert([value])
        assert table.live_keys().tolist() == list(range(5, 15))

    def test_a_reset_clears_rows_and_limiter(self, new_table: NewTable) -> None:
        table = new_table(rate_limiter=rate_limiter(1, 1.0, (-1.0, 1.0)))
        table.insert([1])
        assert blocks(inserting(table))
        table.reset()
        assert table.describe().size == 0
        assert not blocks(inserting(table))

    def test_samples_beyond_a_deadline_end_with_deadline_exceeded(self, new_table: NewTable) -> None:
        table = new_table(rate_limiter=rate_limiter(2))
        with refused("WAITED_TOO_LONG"):
            table.sample(1, wait_s=0.05)


class TestDifferent:
    def test_a_reset_sends_those_who_wait_away_rather_than_let_them_on(self, new_table: NewTable) -> None:
        table = new_table(rate_limiter=rate_limiter(1, 1.0, (-1.0, 1.0)))
        table.insert([1])
        waiting = table.begin_insert([2])
        wait_for_waiting(table, 1)
        table.reset()
        with refused("TABLE_RESET"):
            waiting.result()

    def test_a_batch_is_drawn_at_once_when_it_has_all_of_its_samples(self, new_table: NewTable) -> None:
        table = new_table(rate_limiter=rate_limiter(1, 1.0, (-1.0, 1.0)))
        table.insert([0])
        draw = table.begin_sample(4)
        wait_for_waiting(table, 1)
        table.insert([1], wait_s=CALL_TIMEOUT_S)
        table.insert([2], wait_s=CALL_TIMEOUT_S)
        assert draw.result().batch.size == 3

    def test_a_call_that_does_not_say_how_long_to_wait_does_not_wait_to_draw(self, new_table: NewTable) -> None:
        table = new_table(rate_limiter=rate_limiter(2))
        table.insert([0])
        answer = replay_pb2.SampleRequest(table=table.name, draw=make_draw(1))
        with refused("LIMITED"):
            table.stub.Sample(answer)
