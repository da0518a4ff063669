"""Calls, errors and latencies of a method."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_server.rpc.method_figures import MethodFigures

from tests.server.statistics.clocks import SetClock


def test_before_the_first_call_all_is_zero() -> None:
    figures = MethodFigures()
    assert (figures.calls, figures.errors, figures.active) == (0, 0, 0)
    recent = figures.recent()
    assert (recent.calls_per_s, recent.mean_s, recent.quantile_s(0.5), recent.quantile_s(0.99)) == (0.0, 0.0, 0.0, 0.0)


@given(st.lists(st.floats(2e-6, 1000.0), min_size=1, max_size=100), st.floats(0.01, 1.0))
def test_a_quantile_is_right_within_ten_percent(durations: list[float], fraction: float) -> None:
    figures = MethodFigures()
    for duration in durations:
        figures.answered(duration)
    exact = np.quantile(durations, fraction, method="inverted_cdf")
    assert figures.recent().quantile_s(fraction) == pytest.approx(exact, rel=0.1)
    assert figures.recent().mean_s == pytest.approx(np.mean(durations))
    assert figures.calls == len(durations)


@given(st.lists(st.tuples(st.floats(0, 40), st.sampled_from([0.001, 0.1, 10.0])), min_size=1, max_size=40))
def test_recent_calls_are_those_of_the_last_minute(steps: list[tuple[float, float]]) -> None:
    clock = SetClock()
    began, figures = clock.now, MethodFigures(clock)
    answered = []
    for passed, duration in steps:
        clock.now += passed
        figures.answered(duration)
        answered.append((clock.now, duration))
    # The minute starts at a multiple of 10 s, between 50 and 60 seconds ago.
    start = max(began, (clock.now // 10) * 10 - 50)
    durations = [duration for at, duration in answered if at >= start]
    recent = figures.recent()
    assert recent.calls == len(durations)
    assert recent.mean_s == pytest.approx(np.mean(durations))
    assert recent.quantile_s(0.5) == pytest.approx(np.quantile(durations, 0.5, method="inverted_cdf"), rel=0.1)
    assert recent.covered_s == pytest.approx(clock.now - start)
    assert figures.calls == len(steps)


def test_a_minute_without_calls_has_no_latencies() -> None:
    clock = SetClock()
    figures = MethodFigures(clock)
    figures.answered(0.1)
    clock.now += 61
    recent = figures.recent()
    assert (figures.calls, recent.calls, recent.mean_s, recent.quantile_s(0.99)) == (1, 0, 0.0, 0.0)


@pytest.mark.parametrize("duration", [0.0, 1e-12, 1e9])
def test_durations_beyond_all_bounds_are_counted(duration: float) -> None:
    figures = MethodFigures()
    figures.answered(duration)
    assert figures.calls == 1
    assert figures.recent().quantile_s(0.5) > 0


def test_what_is_at_work_is_active_until_it_ends_in_whatever_way() -> None:
    figures = MethodFigures()
    with figures.at_work():
        with figures.at_work():
            assert figures.active == 2
        assert figures.active == 1
    with pytest.raises(RuntimeError), figures.at_work():
        raise RuntimeError
    assert figures.active == 0


def test_a_method_stays_used_after_a_stream_without_messages() -> None:
    figures = MethodFigures()
    before = figures.is_used
    with figures.at_work():
        during = figures.is_used
    assert (before, during, figures.is_used) == (False, True, True)
