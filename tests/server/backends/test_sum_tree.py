"""Guarantees of the sum tree beyond those of all backends."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_proto.errors import FieldError
from replay_server.backends import LiveRows, SumTree, SumTreeParameters
from replay_server.backends.index import LEAST_PROBABILITY
from replay_server.backends.sum_tree import MASS_LIMIT

from tests.server.backends.indexed_ring import IndexedRing
from tests.support.invariants import nbytes


def pairwise_sum(masses: NDArray[np.float64]) -> float:
    """Add masses in pairs, pairs of pairs, and so on, like a binary tree."""
    while len(masses) > 1:
        masses = np.append(masses, 0.0) if len(masses) % 2 else masses
        masses = masses[0::2] + masses[1::2]
    return float(masses[0])


@pytest.mark.parametrize("slots", [1, 5, 8, 64, 65, 513, 100_003])
def test_the_total_is_exactly_the_pairwise_sum_of_all_masses(slots: int) -> None:
    generator = np.random.default_rng(0)
    index = SumTree(SumTreeParameters(alpha=1.0, epsilon=0.0), np.zeros(slots))
    index.rebuild(LiveRows(oldest=0, size=slots, slots=slots))
    masses = np.zeros(slots)
    for _ in range(30):
        keys = generator.permutation(slots)[: generator.integers(1, slots + 1)]
        masses[keys] = 10.0 ** generator.uniform(-30, 30, size=len(keys))
        index.write(keys, masses[keys])
        assert index.total_mass == pairwise_sum(masses)


def test_ten_million_updates_leave_the_total_exactly_the_pairwise_sum() -> None:
    rows = 40_000
    generator = np.random.default_rng(0)
    index = SumTree(SumTreeParameters(alpha=1.0, epsilon=0.0), np.zeros(rows))
    index.rebuild(LiveRows(oldest=0, size=rows, slots=rows))
    masses = 10.0 ** generator.uniform(-12, 12, size=rows)
    for _ in range(250):
        generator.shuffle(masses)
        index.write(np.arange(rows), masses)
    assert index.total_mass == pairwise_sum(masses)


def test_mass_is_the_capped_priority_to_the_power_of_alpha() -> None:
    ring = IndexedRing("sum_tree", 3, given={"alpha": 0.5, "epsilon": 1.0, "max_priority": 9.0})
    ring.insert([3.0, 8.0, 100.0])
    assert ring.index.total_mass == 2.0 + 3.0 + 3.0
    np.testing.assert_allclose(ring.draw([0.1, 0.5, 0.9]).probabilities, [2 / 8, 3 / 8, 3 / 8])


def test_alpha_zero_draws_all_rows_alike_even_those_of_priority_zero() -> None:
    ring = IndexedRing("sum_tree", 4, given={"alpha": 0.0, "epsilon": 0.0})
    ring.insert([0.0, 1.0, 1e300, 0.0])
    np.testing.assert_array_equal(ring.draw([0.0, 0.3, 0.6, 0.9]).probabilities, 0.25)


def test_a_mass_too_small_for_a_float_is_zero_and_never_drawn() -> None:
    ring = IndexedRing("sum_tree", 4, given={"alpha": 2.0, "epsilon": 0.0})
    ring.insert([1e-200, 1e-100, 1e-200])
    assert set(ring.draw([0.0, 0.5, 1.0]).keys.tolist()) == {1}


def test_a_probability_too_small_for_its_inverse_is_reported_as_the_least_one() -> None:
    ring = IndexedRing("sum_tree", 4, given={"alpha": 1.0, "epsilon": 0.0})
    ring.insert([1e-300, 1e200])
    assert ring.index.smallest_probability(ring.live) == LEAST_PROBABILITY
    assert ring.draw([0.0]).probabilities.tolist() == [LEAST_PROBABILITY]


def test_a_row_is_reached_through_a_left_sum_that_was_rounded_down() -> None:
    ring = IndexedRing("sum_tree", 8, given={"alpha": 1.0, "epsilon": 0.0})
    ring.insert([0.1, 0.2, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0])
    for fraction in np.nextafter([1 / 6, 0.5, 1.0], 2.0):
        ring.draw([min(fraction, 1.0)])


@pytest.mark.parametrize("rows", [1, 8, 9, 70, 600])
@pytest.mark.parametrize("first", [0, 500, 4_000, 5_600])
def test_a_few_rows_in_a_large_ring_are_drawn_by_mass(first: int, rows: int) -> None:
    # They begin in the first slot, share parents with empty slots, or lie at both ends of the ring.
    generator = np.random.default_rng(rows)
    ring = IndexedRing("sum_tree", 5_000, slack=640, first_key=first)
    ring.insert(10.0 ** generator.uniform(-3, 3, rows))
    middles = ring.expected().middles()
    drawn = ring.draw(np.concatenate([middles, [0.0, np.nextafter(1.0, 0.0)], generator.random(1_000)]))
    assert sorted(drawn.keys[:rows]) == list(range(first, first + rows))


@pytest.mark.parametrize(
    ("parameters", "limit"),
    [
        (SumTreeParameters(), math.inf),
        (SumTreeParameters(alpha=0.0), math.inf),
        (SumTreeParameters(alpha=5.0, max_priority=10.0), math.inf),
        (SumTreeParameters(alpha=1.0), 2.0**900),
        (SumTreeParameters(alpha=2.0), 2.0**450),
        (SumTreeParameters(alpha=1.0, epsilon=2.0**899), 2.0**899),
        (SumTreeParameters(alpha=1.0, max_priority=2.0**1000), 2.0**900),
    ],
)
def test_the_priority_limit_is_where_the_mass_passes_two_to_the_900(
    parameters: SumTreeParameters, limit: float
) -> None:
    index = SumTree(parameters, np.zeros(1))
    assert index.priority_limit == pytest.approx(limit, rel=1e-12)
    if limit < math.inf:
        assert parameters.mass(index.priority_limit) <= MASS_LIMIT
        assert parameters.mass(float(np.nextafter(index.priority_limit, math.inf))) > MASS_LIMIT


def test_rows_at_the_priority_limit_add_up_to_a_finite_total() -> None:
    ring = IndexedRing("sum_tree", 100, given={"alpha": 1.5})
    ring.insert(np.full(100, ring.index.priority_limit))
    assert math.isfinite(ring.index.total_mass)
    ring.draw(np.linspace(0.0, 1.0, 50))


def test_an_epsilon_that_alone_passes_the_limit_is_refused() -> None:
    with pytest.raises(FieldError, match="epsilon"):
        SumTreeParameters(alpha=10.0, epsilon=1e100)


def test_it_takes_at_most_32_bytes_per_row() -> None:
    rows = 1_000_000
    assert nbytes(SumTree(SumTreeParameters(), np.zeros(rows))) / rows <= 32
