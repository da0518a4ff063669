"""Two-level draws have the probabilities of a single table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_client._shards.keys import MOST_ID, MOST_LOCAL, global_keys, local_keys, shard_ids
from replay_client._shards.mass import joined_weights, places_of_batches, rows_by_shard, shard_chances
from replay_client.draws import DrawMode

MASSES = st.lists(st.floats(0, 1e9), min_size=1, max_size=6)


@given(shard=st.integers(0, MOST_ID), local=st.lists(st.integers(0, MOST_LOCAL), max_size=5))
def test_keys_are_composed_and_split(shard: int, local: list[int]) -> None:
    keys = global_keys(shard, np.array(local, np.int64))
    assert (keys >= 0).all()
    assert shard_ids(keys).tolist() == [shard] * len(local)
    assert local_keys(keys).tolist() == local


def test_the_first_shard_has_the_keys_of_a_single_table() -> None:
    assert global_keys(0, np.arange(5)).tolist() == [0, 1, 2, 3, 4]


def test_a_negative_key_belongs_to_no_shard() -> None:
    assert (shard_ids(np.array([-1, -(2**63)])) < 0).all()


@given(masses=MASSES, batch_size=st.integers(1, 300), mode=st.sampled_from(["stratified", "independent"]))
def test_shards_without_rows_are_not_drawn(masses: list[float], batch_size: int, mode: DrawMode) -> None:
    drawable = np.arange(len(masses)) % 3  # shard 0, 3, ... has no rows
    drawable[-1] = 1
    chances = shard_chances(masses, drawable.tolist())
    assert sum(chances) == pytest.approx(1)
    counts = np.array(rows_by_shard(chances, batch_size, mode, np.random.default_rng(0)))
    assert counts.sum() == batch_size
    assert (counts[np.array(chances) == 0.0] == 0).all()
    assert (np.array(chances)[drawable == 0] == 0.0).all()


def test_shards_without_mass_are_drawn_by_their_rows() -> None:
    assert shard_chances([0.0, 0.0, 0.0], [1, 0, 3]) == [0.25, 0.0, 0.75]


@pytest.mark.parametrize("mode", ["stratified", "independent"])
def test_shards_get_rows_in_proportion_to_their_mass(mode: DrawMode) -> None:
    chances = np.array(shard_chances([1.0, 2.0, 5.5], [1, 1, 1]))
    random = np.random.default_rng(0)
    counts = np.sum([rows_by_shard(chances.tolist(), 7, mode, random) for _ in range(20_000)], axis=0)
    spread = np.sqrt(140_000 * chances * (1 - chances))  # of independent draws; that of stratified ones is smaller
    assert (abs(counts - 140_000 * chances) < 4 * spread).all()


def test_stratified_counts_are_those_of_a_single_table() -> None:
    """A shard gets at most one row more or less than its share, because only the parts at its ends are divided."""
    chances, random = np.array(shard_chances([1.0, 2.0, 5.5], [1, 1, 1])), np.random.default_rng(0)
    for _ in range(2000):
        assert (abs(rows_by_shard(chances.tolist(), 100, "stratified", random) - 100 * chances) < 2).all()


def test_several_boundaries_in_one_part_share_its_point() -> None:
    """The first two shards lie in the first part, whose only point is in one of three shards."""
    chances, random = np.array([0.05, 0.05, 0.9]), np.random.default_rng(0)
    counts = np.array([rows_by_shard(chances.tolist(), 7, "stratified", random) for _ in range(20_000)])
    assert counts[:, :2].sum(axis=1).max() == 1
    assert (abs(counts.mean(axis=0) - 7 * chances) < 4 * np.sqrt(0.35 * 0.65 / 20_000)).all()


def test_each_batch_gets_its_rows_of_each_shard_in_random_order() -> None:
    places = places_of_batches([2, 0, 3], 2, np.random.default_rng(0))
    assert [sorted(batch) for batch in places.tolist()] == [[0, 1, 4, 5, 6], [2, 3, 7, 8, 9]]
    orders = [places_of_batches([2, 0, 3], 2, np.random.default_rng(seed)) for seed in range(2000)]
    assert len({tuple(of_batches[0]) for of_batches in orders}) == 120
    assert len({tuple(of_batches[1]) for of_batches in orders}) == 120


def test_weights_follow_the_formula() -> None:
    probabilities = np.array([0.1, 0.025, 0.5])
    assert joined_weights(probabilities, None, 0.5).tolist() == np.array([0.5, 1.0, 0.05**0.5], np.float32).tolist()
    assert joined_weights(probabilities, 0.001, 1.0).tolist() == np.array([0.01, 0.04, 0.002], np.float32).tolist()
    assert joined_weights(probabilities, None, 0.0).tolist() == [1.0, 1.0, 1.0]
