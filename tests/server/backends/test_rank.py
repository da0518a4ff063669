"""Guarantees of the rank backend beyond those of all backends."""

from __future__ import annotations

import math

import numpy as np
import pytest
from replay_server.backends import RankIndex, RankParameters
from replay_server.backends.structures import rank_tree
from replay_server.backends.structures.power_sums import PowerSums, find_ranks, power_sums
from replay_server.storage.table_config import TableConfig

from tests.server.backends.indexed_ring import IndexedRing
from tests.support.examples import examples
from tests.support.invariants import check_index, nbytes
from tests.support.rows import WHOLE


def require_exact_ranks(ring: IndexedRing) -> None:
    """Draw the middle of every rank's interval, and check that the rows come in order of rank."""
    expected = ring.expected()
    assert ring.draw(expected.middles()).keys.tolist() == expected.keys.tolist()


def test_of_equal_priorities_the_newest_has_the_better_rank() -> None:
    ring = IndexedRing("rank", capacity=6, slack=2)
    ring.insert([5.0, 1.0, 5.0, 9.0, 1.0, 5.0])
    assert ring.draw(ring.expected().middles()).keys.tolist() == [3, 5, 2, 0, 4, 1]


def test_the_order_of_equal_priorities_holds_as_slots_are_used_again() -> None:
    ring = IndexedRing("rank", capacity=150, slack=40)
    for count in (100, 90, 150, 37, 1, 400):
        ring.insert(np.ones(count))
        assert ring.draw(ring.expected().middles()).keys.tolist() == sorted(ring.truth, reverse=True)


@pytest.mark.parametrize("falling", [False, True])
def test_ranks_are_exact_when_rows_come_in_sorted_order(falling: bool) -> None:
    ring = IndexedRing("rank", capacity=3000, slack=500)
    priorities = np.arange(10_000, dtype=np.float64)
    ring.insert(priorities[::-1] if falling else priorities)
    require_exact_ranks(ring)


def test_ranks_are_exact_after_all_rows_go_to_one_priority_and_apart_again() -> None:
    ring = IndexedRing("rank", capacity=5000, slack=500)
    generator = np.random.default_rng(0)
    ring.insert(generator.exponential(size=5000))
    for _ in range(4):
        ring.update_all(np.full(5000, 2.0))
        require_exact_ranks(ring)
        ring.update_all(generator.exponential(size=5000))
        require_exact_ranks(ring)


def test_ranks_are_exact_when_priorities_only_ever_shrink() -> None:
    ring = IndexedRing("rank", capacity=4000, slack=100)
    generator = np.random.default_rng(0)
    ring.insert(np.ones(4000))
    for _ in range(60):
        keys = generator.choice(4000, size=256, replace=False)
        ring.update(keys, [ring.truth[key] * generator.random() for key in keys.tolist()])
    require_exact_ranks(ring)


def test_most_of_one_end_may_be_taken_out_at_once() -> None:
    ring = IndexedRing("rank", capacity=20_000, slack=20_000)
    ring.insert(np.arange(20_000, dtype=np.float64))
    ring.insert(np.full(19_990, 1e9))
    require_exact_ranks(ring)
    ring.insert(np.zeros(20_000))
    require_exact_ranks(ring)


def test_a_ring_that_is_filled_again_and_again_does_not_outgrow_its_pools() -> None:
    ring = IndexedRing("rank", capacity=2000, slack=64, checked=False)
    for turn in range(examples(100)):
        priority = ring.index.largest_priority if turn % 2 else 1.0 + turn
        keys = np.arange(ring.inserted, ring.inserted + 2000)
        for start in range(0, 2000, 64):
            piece = keys[start : start + 64]
            ring.index.write(piece, np.full(len(piece), priority))
            ring.index.clear(piece[piece >= 2000] - 2000)
        ring.inserted += 2000
        check_index(ring.index)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 1.0, 1.7])
def test_sums_of_powers_are_as_exact_as_a_float_can_be(alpha: float) -> None:
    count = 20_000
    exact = math.fsum(float(rank) ** -alpha for rank in range(1, count + 1))
    sums = power_sums(count, alpha).prefix
    assert sums[-1] == pytest.approx(exact, rel=4e-16)
    assert (np.diff(sums) >= 0.0).all()


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 1.0, 1.7, 3.0, 60.0, 2000.0])
def test_the_guide_leads_to_the_very_rank_that_a_search_of_all_sums_finds(alpha: float) -> None:
    sums = power_sums(20_000, alpha)
    for size in (1, 2, 15, 16, 17, 300, 19_999, 20_000):
        require_ranks_of_a_search(sums, size)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.7, 1.0, 1.3, 2.5])
def test_so_it_does_where_most_guesses_are_sure_and_where_masses_drown_in_the_sums(alpha: float) -> None:
    sums = power_sums(2_000_000, alpha)
    for size in (70_000, 2_000_000):
        require_ranks_of_a_search(sums, size)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 65, 1000])
def test_so_it_does_with_few_ranks(count: int) -> None:
    for alpha in (0.0, 0.6, 1.0, 9.0):
        require_ranks_of_a_search(power_sums(count, alpha), count)


def require_ranks_of_a_search(sums: PowerSums, size: int) -> None:
    """Compare random points, and points at and next to the ends of ranks, with a search of all sums."""
    generator = np.random.default_rng(0)
    total = sums.prefix[size]
    last = np.nextafter(total, 0.0)
    points = np.minimum(np.append(generator.random(20_000), [0.0, 1.0]) * total, last)
    some = np.arange(size) if size <= 20_000 else generator.integers(0, size, 20_000)
    ends = np.minimum(sums.prefix[some], last)
    near = np.minimum(ends + total * generator.normal(0, 1e-9, len(ends)), last)
    for chosen in (points, ends, np.nextafter(ends, 0.0), np.nextafter(ends, total), np.abs(near)):
        ranks = np.empty(len(chosen), dtype=np.int64)
        find_ranks(sums, size, chosen / total, ranks)
        found = np.minimum(chosen / total * total, last)
        np.testing.assert_array_equal(ranks, np.searchsorted(sums.prefix[1 : size + 1], found, side="right"))


@pytest.mark.parametrize("alpha", [3.0, 60.0, 2000.0])
def test_ranks_without_any_mass_are_never_drawn_and_not_the_least_probable(alpha: float) -> None:
    ring = IndexedRing("rank", capacity=50, given={"alpha": alpha})
    ring.insert(np.arange(50, dtype=np.float64))
    ring.draw(np.linspace(0.0, 1.0, 100))
    assert ring.index.smallest_probability(ring.live) == pytest.approx(ring.expected().smallest_probability, rel=1e-12)


def test_it_takes_at_most_60_bytes_per_row() -> None:
    rows = 1_000_000
    assert nbytes(RankIndex(RankParameters(), np.zeros(rows))) / rows <= 60


def test_the_largest_ring_has_no_more_rows_than_the_tree_can_count() -> None:
    config = TableConfig("largest", WHOLE, RankIndex.most_rows, "rank")
    assert config.slots <= rank_tree.MOST_RANKED
