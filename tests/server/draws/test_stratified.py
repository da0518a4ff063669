"""Random points of stratified draws."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from replay_server.table.stratified import stratified_fractions
from scipy.stats import chisquare, kstest


@pytest.mark.parametrize("count", [1, 2, 7, 256, 1000])
def test_each_segment_has_one_point(count: int) -> None:
    random = np.random.default_rng(count)
    for _ in range(100):
        fractions = stratified_fractions(random, count)
        assert np.floor(np.sort(fractions) * count).tolist() == list(range(count))


def test_points_are_uniform_within_their_segments() -> None:
    random = np.random.default_rng(1)
    within = np.concatenate([stratified_fractions(random, 10) * 10 % 1 for _ in range(2_000)])
    assert kstest(within, "uniform").pvalue > 0.001


def test_every_order_of_the_segments_is_equally_likely() -> None:
    random = np.random.default_rng(2)
    seen = [tuple(np.floor(stratified_fractions(random, 4) * 4).astype(int).tolist()) for _ in range(24_000)]
    assert chisquare([seen.count(order) for order in permutations(range(4))]).pvalue > 0.001


@pytest.mark.parametrize("count", [1, 2, 7, 64])
@pytest.mark.parametrize("batches", [2, 3, 16])
def test_batches_drawn_together_are_those_drawn_one_after_another(count: int, batches: int) -> None:
    together, alone = np.random.default_rng(3), np.random.default_rng(3)
    expected = [stratified_fractions(alone, count) for _ in range(batches)]
    assert stratified_fractions(together, count, batches).tolist() == np.concatenate(expected).tolist()
