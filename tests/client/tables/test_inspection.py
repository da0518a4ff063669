"""Weights, histograms, fits and plots from an inspection of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_client import InvalidArgumentError, Table
from replay_client.cli.distribution import Distributions, bars, fitted, labelled
from replay_client.cli.formats import value_text
from replay_client.cli.text_plot import log_log_plot

from tests.client.numbered import rows

NewTable = Callable[..., Table]
VALUES = st.lists(st.floats(0, 1e300, allow_subnormal=False), min_size=1, max_size=50)


def test_weights_are_those_of_batches(new_table: NewTable) -> None:
    table = new_table(seed=1)
    table.insert(rows(range(300)), priorities=np.random.default_rng(0).exponential(size=300))
    found = table.inspect()
    batch = table.sample(100, beta=0.7, weight_norm="table")
    weight_of = dict(zip(found.priorities.tolist(), found.weights(0.7).tolist(), strict=True))
    stored = table.read(batch.row_keys)
    assert [weight_of[priority] for priority in stored.priorities.tolist()] == pytest.approx(batch.weights, rel=1e-6)


def test_every_row_is_stood_for_once(new_table: NewTable) -> None:
    table = new_table(capacity=5000)
    assert table.inspect().rows.tolist() == []
    table.insert(rows(range(4000)), priorities=np.random.default_rng(0).exponential(size=4000))
    found = table.inspect()
    assert found.rows.sum() == pytest.approx(4000)
    assert (found.rows > 0).all()
    shown = Distributions.of(found, beta=0.4)
    for distribution in (shown.priorities, shown.weights, shown.ages_s, shown.times_sampled):
        assert sum(bar.rows for bar in distribution) == pytest.approx(4000)
    above = sum(bar.rows for bar in shown.priorities if bar.low >= shown.priorities[5].low)
    exact = (table.read(np.arange(4000)).priorities >= shown.priorities[5].low).sum()
    assert above == pytest.approx(exact, abs=4000 / 256)


def test_slopes_are_the_exponents_of_the_table(new_table: NewTable) -> None:
    priorities = np.random.default_rng(0).exponential(size=900) ** 4
    by_rank, by_priority = new_table(backend="rank", alpha=0.7), new_table(alpha=0.3, epsilon=0.01)
    for table in (by_rank, by_priority):
        table.insert(rows(range(900)), priorities=priorities)
    ranked = Distributions.of(by_rank.inspect(), 0.4)
    assert ranked.by_rank is not None
    assert ranked.by_rank.exponent == pytest.approx(-0.7)
    proportional = Distributions.of(by_priority.inspect(), 0.4)
    assert proportional.by_priority is not None
    assert proportional.by_priority.exponent == pytest.approx(0.3)
    assert (ranked.by_priority, proportional.by_rank) == (None, None)


def test_a_slope_needs_two_places() -> None:
    one = np.ones(3)
    assert fitted(one, one, one) is None
    assert fitted(np.zeros(2), np.ones(2), np.ones(2)) is None


@given(VALUES)
def test_bars_hold_all_rows_in_order(values: list[float]) -> None:
    found = bars(np.array(values), np.ones(len(values)))
    assert sum(bar.rows for bar in found) == len(values)
    assert (found[0].low, found[-1].high) == (min(values), max(values))
    assert all(bar.low <= bar.high for bar in found)
    assert sum(rows for _, rows in labelled(found, lambda value: f"{value:.3g}")) == len(values)


def test_bars_of_many_orders_of_magnitude_grow_and_zeros_have_their_own() -> None:
    found = bars(np.array([0.0, 0.0, 1.0, 10.0, 100.0, 1000.0]), np.ones(6), count=4)
    assert [(bar.low, bar.high, bar.rows) for bar in found] == [
        (0, 0, 2),
        (1, pytest.approx(10), 1),
        (pytest.approx(10), pytest.approx(100), 1),
        (pytest.approx(100), 1000, 2),
    ]


@pytest.mark.parametrize("largest", [0, 101, 1.5, "x"])
def test_a_number_of_rows_out_of_range_is_refused(table: Table, largest: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^largest: expected a whole number from 1 to 100, got "):
        table.inspect(largest=largest)


def test_a_falling_line_falls_in_the_plot() -> None:
    x = np.geomspace(1, 1000, 200)
    plot = log_log_plot(x, 1 / x, None, width=40, height=10, styles=("", "")).plain.splitlines()
    assert len(plot) == 10
    assert max(map(len, plot)) <= 40
    dots = [line[5:] for line in plot[:8]]
    first = [len(line) - len(line.lstrip()) for line in dots]
    assert first == sorted(first)
    assert (first[0], "1e-3" in plot[7]) == (0, True)


@pytest.mark.parametrize("count", [1, 2])
def test_a_plot_of_hardly_anything(count: int) -> None:
    x = np.arange(1.0, count + 1)
    assert log_log_plot(x, np.full(count, 1e-300), np.full(count, 1.0), 30, 8, ("", "")).plain


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32(0.123456), "0.1235"),
        (np.int64(7), "7"),
        (np.bool_(True), "true"),
        (np.array([[1, 2], [3, 4]]), "[1, 2, 3, 4]"),
        (np.zeros((84, 84, 4), np.uint8), "uint8[84,84,4] 0..0"),
        (np.array([False] * 5), "bool[5] false..false"),
    ],
)
def test_values_as_people_read_them(value: np.ndarray, text: str) -> None:
    assert value_text(value) == text
