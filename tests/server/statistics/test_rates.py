"""Events per second, with a manual clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_server.table.rates import WINDOW_S, Rate

from tests.server.statistics.clocks import SetClock


def test_before_any_time_has_passed_there_is_no_rate() -> None:
    rate = Rate(SetClock())
    rate.add(5)
    assert rate.per_second() == 0.0
    assert rate.total == 5


def test_at_first_the_window_is_as_long_as_the_time_that_has_passed() -> None:
    clock = SetClock()
    rate = Rate(clock)
    rate.add(10)
    clock.now += 2.5
    assert rate.per_second() == pytest.approx(4.0)


def test_a_steady_stream_has_its_rate() -> None:
    clock = SetClock()
    rate = Rate(clock)
    for _ in range(400):
        clock.now += 0.1
        rate.add(3)
    assert rate.per_second() == pytest.approx(30.0, rel=0.02)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    clock = SetClock()
    rate = Rate(clock)
    rate.add(1000)
    clock.now += WINDOW_S - 1
    assert rate.per_second() == pytest.approx(1000 / (WINDOW_S - 1))
    clock.now += 2
    assert rate.per_second() == 0.0
    assert rate.total == 1000


@pytest.mark.parametrize("pause", [WINDOW_S, WINDOW_S + 1, 3 * WINDOW_S, 10_000_000])
def test_a_long_pause_leaves_nothing(pause: int) -> None:
    clock = SetClock()
    rate = Rate(clock)
    for _ in range(30):
        rate.add(7)
        clock.now += 0.7
    clock.now += pause + 1
    assert rate.per_second() == 0.0
    rate.add(5)
    assert 0 < rate.per_second() <= 5 / (WINDOW_S - 1)


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 100)), max_size=40), st.sampled_from([10, WINDOW_S]))
def test_a_rate_is_that_of_the_events_in_the_window(steps: list[tuple[float, int]], window_s: int) -> None:
    clock = SetClock()
    began, rate, events = clock.now, Rate(clock), []
    for passed, count in steps:
        clock.now += passed
        rate.add(count)
        events.append((clock.now, count))
    # The window starts at a whole second, and is up to a second longer.
    start = int(clock.now) - window_s
    counted = sum(count for at, count in events if int(at) >= start)
    covered = min(clock.now - start, clock.now - began)
    assert rate.per_second(window_s) == pytest.approx(counted / covered if covered > 0 else 0.0)
    assert rate.total == sum(count for _, count in steps)
