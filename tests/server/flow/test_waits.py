"""Stats says what calls wait for, how far they have come, and how much longer they are expected to wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from replay_proto.v1 import replay_pb2

from tests.support.caller import CalledTable
from tests.support.flow import rate_limiter, wait_for_waiting

NewTable = Callable[..., CalledTable]


def facts(wait: replay_pb2.WaitStats) -> tuple[str, int, int, int]:
    return wait.waited_for, wait.calls, wait.have, wait.needed


def check_expected(table: CalledTable, missing: int, per_s: Callable[[replay_pb2.Rates], float]) -> None:
    """Check how long the first call is expected to wait for what is missing, at a rate.

    Rates fall while nothing is inserted or drawn, so the expected wait lies between those at an earlier and a later
    rate.
    """
    stats = table.stats()
    (wait,) = stats.waits
    assert missing / per_s(stats.rates) <= wait.expected_s <= missing / per_s(table.stats().rates)


def test_nobody_waits_for_a_table_with_rows(table: CalledTable) -> None:
    table.insert([0])
    table.sample(1)
    assert not table.stats().waits


def test_draws_wait_for_the_first_row(table: CalledTable) -> None:
    draws = [table.begin_sample(3) for _ in range(2)]
    wait_for_waiting(table, 2)
    (wait,) = table.stats().waits
    assert facts(wait) == ("rows", 2, 0, 1)
    assert not wait.HasField("expected_s")
    assert 0 < wait.waited_s < table.stats().waits[0].waited_s
    table.insert([0])
    for draw in draws:
        draw.result()
    assert not table.stats().waits


@pytest.mark.parametrize("parameters", [{}, {"max_times_sampled": 10.0}])
def test_a_draw_below_min_size_is_expected_to_wait_for_as_long_as_the_inserts_take(
    new_table: NewTable, parameters: dict[str, float]
) -> None:
    table = new_table(capacity=20_000, rate_limiter=rate_limiter(10_000), parameters=parameters)
    table.insert(range(3120))
    draw = table.begin_sample(32)
    wait_for_waiting(table, 1)
    (wait,) = table.stats().waits
    assert facts(wait) == ("rows", 1, 3120, 10_000)
    check_expected(table, 6880, lambda rates: rates.inserted_per_s)
    draw.cancel()
    wait_for_waiting(table, 0)
    assert not table.stats().waits


def test_the_first_draw_in_line_says_how_many_samples_it_was_granted(new_table: NewTable) -> None:
    table = new_table(rate_limiter=rate_limiter(10, 2.0, 5.0))
    table.insert(range(10))
    draws = [table.begin_sample(9)]
    wait_for_waiting(table, 1)
    draws.append(table.begin_sample(70))
    wait_for_waiting(table, 2)
    (wait,) = table.stats().waits
    assert facts(wait) == ("samples", 2, 5, 9)
    check_expected(table, 4, lambda rates: 2 * rates.inserted_per_s)
    for draw in draws:
        draw.cancel()


def test_inserts_wait_for_draws(new_table: NewTable) -> None:
    table = new_table(rate_limiter=rate_limiter(10, 1.0, 5.0))
    table.insert(range(15))
    table.sample(2)
    table.insert([15, 16], wait_s=0.0)
    insert = table.begin_insert(range(17, 20))
    wait_for_waiting(table, 1)
    (wait,) = table.stats().waits
    assert facts(wait) == ("inserts", 1, 2, 5)
    check_expected(table, 3, lambda rates: rates.sampled_per_s)
    table.sample(3)
    insert.result()
    assert not table.stats().waits


def test_inserts_wait_for_room_in_a_queue(new_table: NewTable) -> None:
    queue = new_table(capacity=10, backend="fifo", parameters={"max_times_sampled": 2})
    queue.insert(range(10))
    queue.sample(4)
    insert = queue.begin_insert(range(10, 17))
    wait_for_waiting(queue, 1)
    (wait,) = queue.stats().waits
    assert facts(wait) == ("room", 1, 2, 7)
    check_expected(queue, 5, lambda rates: rates.sampled_per_s / 2)
    insert.cancel()


def test_a_draw_from_a_queue_waits_for_its_rows(new_table: NewTable) -> None:
    queue = new_table(capacity=10, backend="fifo", parameters={"max_times_sampled": 2})
    queue.insert(range(3))
    draw = queue.begin_sample(8)
    wait_for_waiting(queue, 1)
    (wait,) = queue.stats().waits
    assert facts(wait) == ("rows", 1, 6, 8)
    check_expected(queue, 2, lambda rates: 2 * rates.inserted_per_s)
    draw.cancel()
