"""Ages of rows, with a manual clock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_server.table.table_figures import InsertClock

from tests.server.statistics.clocks import SetClock

READINGS = 256


def test_rows_from_before_count_from_the_beginning() -> None:
    clock = SetClock()
    ages = InsertClock(100, inserted=50, clock=clock)
    clock.now += 7
    assert ages.ages_s(np.array([0, 49])).tolist() == [7, 7]


def test_in_a_small_table_every_row_has_its_own_age() -> None:
    clock = SetClock()
    ages = InsertClock(200, inserted=0, clock=clock)
    for key in range(500):
        clock.now += 1
        ages.tick(key + 1)
    clock.now += 0.5
    keys = np.arange(300, 500)
    assert ages.ages_s(keys) == pytest.approx(499.5 - keys)


@pytest.mark.parametrize("capacity", [1, 255, 256, 257, 300, 511, 512, 513, 1000, 100_000])
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_an_age_is_right_to_a_256th_of_the_capacity(capacity: int, rows: int) -> None:
    """One row is inserted every millisecond, so ages are positions, and the resolution is a number of rows."""
    clock = SetClock(0.0)
    ages = InsertClock(capacity, inserted=0, clock=clock)
    inserted = 0
    while inserted < 2 * capacity + 100:
        inserted += rows
        clock.now = inserted * 0.001
        ages.tick(inserted)
    resolution = 0.001 * (capacity / READINGS + 1 + 2 * rows)
    keys = np.arange(max(0, inserted - capacity), inserted, max(1, capacity // 50))
    assert ages.ages_s(keys) == pytest.approx((inserted - keys) * 0.001, abs=resolution)


def test_a_burst_larger_than_the_table_has_one_age() -> None:
    clock = SetClock()
    ages = InsertClock(1000, inserted=0, clock=clock)
    clock.now += 1
    ages.tick(5000)
    clock.now += 3
    assert ages.ages_s(np.array([4000, 4999])).tolist() == [3, 3]


@settings(max_examples=50)
@given(
    capacity=st.integers(1, 3000),
    steps=st.lists(st.tuples(st.integers(1, 500), st.floats(0, 10)), min_size=1, max_size=60),
)
def test_ages_never_fall_from_newer_to_older_rows(capacity: int, steps: list[tuple[int, float]]) -> None:
    clock = SetClock()
    ages = InsertClock(capacity, inserted=0, clock=clock)
    inserted = 0
    for count, passed in steps:
        clock.now += passed
        inserted += count
        ages.tick(inserted)
    newest_first = np.arange(inserted - 1, max(-1, inserted - capacity - 1), -max(1, capacity // 40))
    live = ages.ages_s(newest_first).tolist()
    assert live == sorted(live)
    assert all(age >= 0 for age in live)
