"""Guarantees of every backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from replay_server.backends import DEAD_PRIORITY, LiveRows, make_index
from scipy import stats

from tests.server.backends.indexed_ring import IndexedRing
from tests.support.examples import examples
from tests.support.invariants import check_index

LAST_FRACTION = float(np.nextafter(1.0, 0.0))


def exponential(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).exponential(size=count)


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 8, 9, 63, 64, 65, 100, 1000])
def test_draws_follow_the_oracle_for_any_capacity_as_the_ring_goes_round(backend: str, capacity: int) -> None:
    ring = IndexedRing(backend, capacity, slack=max(1, capacity // 3))
    for turn in range(4):
        ring.insert(exponential(capacity * 2 // 3 + 1, seed=turn))
        ring.draw(np.random.default_rng(turn).random(200))
        ring.update_all(exponential(len(ring.truth), seed=100 + turn))
        ring.draw([0.0, 0.5, LAST_FRACTION])


def test_every_row_is_drawn_by_the_middle_of_its_interval(backend: str) -> None:
    ring = IndexedRing(backend, capacity=500, slack=50)
    ring.insert(exponential(700))
    expected = ring.expected()
    assert ring.draw(expected.middles()).keys.tolist() == expected.keys.tolist()


def test_fractions_may_come_in_any_order_and_number(backend: str) -> None:
    ring = IndexedRing(backend, capacity=20)
    ring.insert(exponential(20))
    forward = np.linspace(0.0, LAST_FRACTION, 1000)
    np.testing.assert_array_equal(ring.draw(forward[::-1]).keys, ring.draw(forward).keys[::-1])
    assert len(ring.draw([]).keys) == 0


def test_a_fraction_that_was_rounded_up_to_one_draws_a_row_all_the_same(backend: str) -> None:
    ring = IndexedRing(backend, capacity=10)
    ring.insert(exponential(7))
    ring.draw([1.0, LAST_FRACTION])


def test_rows_are_drawn_evenly_when_all_priorities_are_zero_and_nothing_is_added(backend: str) -> None:
    ring = IndexedRing(backend, capacity=8, given={"epsilon": 0.0, "alpha": 1.0} if backend == "sum_tree" else {})
    ring.insert(np.zeros(12))
    drawn = ring.draw(ring.expected().middles())
    assert sorted(drawn.keys.tolist()) == list(range(4, 12))
    if backend != "rank":
        np.testing.assert_array_equal(drawn.probabilities, 1 / 8)


def test_priorities_may_span_everything_a_float_can_hold(backend: str) -> None:
    ring = IndexedRing(backend, capacity=300, slack=30)
    exponents = np.random.default_rng(1).uniform(-300, 300, size=400)
    ring.insert(10.0**exponents)
    ring.draw(np.random.default_rng(2).random(1000))
    assert ring.index.total_mass == pytest.approx(ring.expected().total_mass, rel=1e-12)


def test_masses_by_rank_are_those_that_rows_are_drawn_by(backend: str) -> None:
    ring = IndexedRing(backend, capacity=200, slack=20)
    ring.insert(exponential(350))
    ring.update(sorted(ring.truth)[:60], np.full(60, 0.5))
    keys = sorted(ring.truth, key=lambda key: (-ring.truth[key], -key))
    masses = ring.index.masses(np.array([ring.truth[key] for key in keys]), np.arange(1, len(keys) + 1))
    expected = ring.expected()
    probabilities = expected.probabilities[expected.places(np.array(keys))]
    np.testing.assert_allclose(masses / ring.index.total_mass, probabilities, rtol=1e-12)


def test_rebuilding_buries_rows_that_are_not_live_any_more(backend: str) -> None:
    ring = IndexedRing(backend, capacity=10, slack=3)
    ring.insert(exponential(25))
    for key in list(ring.truth)[:4]:
        del ring.truth[key]
    ring.rebuild()
    ring.draw(np.linspace(0, LAST_FRACTION, 50))


def test_making_an_index_leaves_the_priority_array_as_it_is(backend: str) -> None:
    priorities = np.arange(5, dtype=np.float64)
    make_index(backend, {}, priorities)
    np.testing.assert_array_equal(priorities, np.arange(5))


def test_the_priority_array_may_be_a_mapped_file(backend: str, tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "priorities", dtype=np.float64, mode="w+", shape=(10,))
    index = make_index(backend, {}, mapped)
    index.rebuild(LiveRows(oldest=0, size=0, slots=10))
    index.write(np.array([0, 1]), np.array([3.0, 4.0]))
    assert mapped.tolist() == [3.0, 4.0] + [DEAD_PRIORITY] * 8


def test_what_is_written_may_be_read_only_or_strided(backend: str) -> None:
    ring = IndexedRing(backend, capacity=20)
    keys = np.arange(5)
    keys.setflags(write=False)
    ring.insert(np.ones(10)[::2])
    ring.index.write(keys, np.arange(10, dtype=np.float64)[::2])
    assert ring.index.largest_priority == 8.0


def test_what_was_drawn_stays_as_it_is_when_more_is_drawn(backend: str) -> None:
    ring = IndexedRing(backend, capacity=20)
    ring.insert(exponential(20))
    fractions = np.random.default_rng(0).random(16)
    first = ring.draw(fractions)
    keys, probabilities = first.keys.copy(), first.probabilities.copy()
    ring.draw(1.0 - fractions)
    np.testing.assert_array_equal(first.keys, keys)
    np.testing.assert_array_equal(first.probabilities, probabilities)


def test_independent_draws_have_the_distribution_that_is_reported(backend: str) -> None:
    ring = IndexedRing(backend, capacity=100, slack=20)
    ring.insert(exponential(250))
    ring.update(sorted(ring.truth)[:50], exponential(50, seed=5))
    draws = 200_000
    drawn = ring.draw(np.random.default_rng(4).random(draws))
    expected = ring.expected()
    counts = np.bincount(expected.places(drawn.keys), minlength=len(ring.truth))
    assert stats.chisquare(counts, draws * expected.probabilities).pvalue > 1e-4


def test_stratified_draws_take_each_row_as_often_as_its_probability_says(backend: str) -> None:
    ring = IndexedRing(backend, capacity=100)
    ring.insert(exponential(150))
    batch = 5_000
    drawn = ring.draw((np.arange(batch) + np.random.default_rng(0).random(batch)) / batch)
    expected = ring.expected()
    counts = np.bincount(expected.places(drawn.keys), minlength=len(ring.truth))
    # An interval fully covers all but two of the segments that it touches, and each segment has one draw.
    assert (np.abs(counts - batch * expected.probabilities) < 2).all()


def test_a_million_updates_leave_no_drift(backend: str) -> None:
    rows, rounds = 50_000, examples(20)
    ring = IndexedRing(backend, capacity=rows, slack=1000, checked=False)
    ring.insert(np.ones(rows))
    generator = np.random.default_rng(0)
    priorities = generator.exponential(size=rows) * 10.0 ** generator.uniform(-6, 6, size=rows)
    for _ in range(rounds):
        generator.shuffle(priorities)
        ring.index.write(generator.permutation(rows), priorities)
    check_index(ring.index)
    ring.truth = dict(enumerate(ring.priorities[:rows].tolist()))
    assert ring.index.total_mass == pytest.approx(ring.expected().total_mass, rel=1e-13)
    ring.draw(generator.random(10_000))
