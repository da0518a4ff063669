"""Calls, errors and latencies of a method."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_server.rpc.method_figures import MethodFigures


def test_before_the_first_call_all_is_zero() -> None:
    figures = MethodFigures()
    assert (figures.calls, figures.errors, figures.active) == (0, 0, 0)
    assert (figures.mean_s, figures.quantile_s(0.5), figures.quantile_s(0.99)) == (0.0, 0.0, 0.0)


@given(st.lists(st.floats(2e-6, 1000.0), min_size=1, max_size=100), st.floats(0.01, 1.0))
def test_a_quantile_is_right_within_ten_percent(durations: list[float], fraction: float) -> None:
    figures = MethodFigures()
    for duration in durations:
        figures.answered(duration)
    exact = np.quantile(durations, fraction, method="inverted_cdf")
    assert figures.quantile_s(fraction) == pytest.approx(exact, rel=0.1)
    assert figures.mean_s == pytest.approx(np.mean(durations))
    assert figures.calls == len(durations)


@pytest.mark.parametrize("duration", [0.0, 1e-12, 1e9])
def test_durations_beyond_all_bounds_are_counted(duration: float) -> None:
    figures = MethodFigures()
    figures.answered(duration)
    assert figures.calls == 1
    assert figures.quantile_s(0.5) > 0


def test_what_is_at_work_is_active_until_it_ends_in_whatever_way() -> None:
    figures = MethodFigures()
    with figures.at_work():
        with figures.at_work():
            assert figures.active == 2
        assert figures.active == 1
    with pytest.raises(RuntimeError), figures.at_work():
        raise RuntimeError
    assert figures.active == 0
