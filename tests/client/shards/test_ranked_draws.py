"""A table on several servers with the backend "rank" is drawn exactly as one table would be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_client import Column, DrawMode, Next, ReplayClient, Table, TableEmptyError, Transitions
from replay_client._shards.keys import global_keys
from replay_client._shards.power_sums import power_sum
from replay_client._shards.ranked_step import RankedStep
from scipy import stats

from tests.client.shards.conftest import COLUMNS, away, in_order, shards_of
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]
SIZES = [10, 60, 130]
"""Rows in each shard."""
ALPHA = 1.0


def fill(table: Table, *, levels: int) -> dict[int, float]:
    """Give the shards different rows of different priorities; return the probability of each row, by key.

    Args:
        table: the table.
        levels: number of different priorities, so that many are equal, also in several shards.
    """
    random = np.random.default_rng(7)
    ranked: list[tuple[float, int, int, int]] = []
    for (shard_id, shard), size in zip(shards_of(table).items(), SIZES, strict=True):
        priorities = np.floor(random.random(size) * levels * (1 + shard_id) / 3)
        keys = shard.insert(rows(np.arange(size) + 1000 * shard_id), priorities=priorities)
        of_shard = zip(priorities.tolist(), keys.tolist(), global_keys(shard_id, keys).tolist(), strict=True)
        ranked += [(-priority, shard_id, -key, whole) for priority, key, whole in of_shard]
    ranked.sort()
    total = power_sum(len(ranked), ALPHA)
    return {key: (rank + 1) ** -ALPHA / total for rank, (_, _, _, key) in enumerate(ranked)}


def rows(numbers: NDArray[np.int64]) -> dict[str, Any]:
    return {"number": numbers, "obs": np.repeat(numbers[:, None], 3, axis=1).astype(np.float32)}


@pytest.fixture
def servers(start_server: Callable[..., ServerProcess], tmp_path: Path) -> list[ServerProcess]:
    """Three durable servers."""
    return in_order(start_server("--data-dir", str(tmp_path / f"data-{number}")) for number in range(3))


@pytest.fixture
def table(servers: list[ServerProcess], reach: Reach) -> Table:
    client = reach(servers)
    return client.create_table("t", columns=COLUMNS, capacity=900, backend="rank", alpha=ALPHA, seed=3)


@pytest.mark.parametrize("mode", ["independent", "stratified"])
def test_every_row_is_drawn_with_the_probability_of_its_rank_in_the_whole_table(table: Table, mode: DrawMode) -> None:
    check_draws(table, mode, batches=80)


@pytest.mark.long
def test_a_million_draws_by_rank_have_the_exact_distribution(table: Table) -> None:
    check_draws(table, "independent", batches=2000)


def test_a_step_with_several_batches_in_flight_sends_one_message_to_each_server(
    servers: list[ServerProcess], table: Table, reach: Reach
) -> None:
    fill(table, levels=50)
    client, steps = reach(servers), 50

    def messages() -> int:
        return client.stats().server.methods["Learn"].calls

    with table.sampler(20, beta=0.5, prefetch=4) as sampler:
        for _ in range(10):
            next(sampler)
        before = messages()
        for _ in range(steps):
            sampler.update_priorities(next(sampler), np.ones(20))
        assert messages() - before <= 1.2 * len(SIZES) * steps  # a few batches need a second round


def check_draws(table: Table, mode: DrawMode, batches: int) -> None:
    """Draw batches of 500 rows, and compare their probabilities, weights and rows with the exact ones."""
    exact = fill(table, levels=50)
    keys = []
    with table.sampler(500, beta=0.5, draw_mode=mode, prefetch=4) as sampler:
        for _ in range(batches):
            batch = next(sampler)
            keys.append(batch.row_keys)
            expected = np.array([exact[key] for key in batch.row_keys.tolist()])
            np.testing.assert_allclose(batch.probabilities, expected, rtol=0, atol=1e-12)
            np.testing.assert_allclose(batch.weights, (expected.min() / expected) ** 0.5, rtol=1e-6)
            assert (batch["number"] == (batch.row_keys >> 48) * 1000 + (batch.row_keys & 0xFFFF)).all()
    assert p_value(np.concatenate(keys), exact) > 0.001


def p_value(keys: NDArray[np.int64], exact: dict[int, float]) -> float:
    """Chi-square test of drawn keys against their probabilities."""
    found = dict(zip(*(each.tolist() for each in np.unique(keys, return_counts=True)), strict=True))
    counts = np.array([found.get(key, 0) for key in exact])
    return float(stats.chisquare(counts, np.array(list(exact.values())) * counts.sum()).pvalue)


def test_draws_without_rejection_would_be_noticed(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = fill(table, levels=50)
    monkeypatch.setattr(RankedStep, "_count", lambda *_: None)
    keys = [table.sample(5000, beta=0.0).row_keys for _ in range(4)]
    assert p_value(np.concatenate(keys), exact) < 1e-9


def test_weights_of_the_whole_table_are_over_its_last_rank(table: Table) -> None:
    exact = fill(table, levels=10**6)
    batch = table.sample(64, beta=0.8, weight_norm="table")
    assert batch.smallest_probability == pytest.approx(min(exact.values()), rel=1e-12)
    np.testing.assert_allclose(batch.weights, (min(exact.values()) / batch.probabilities) ** 0.8, rtol=1e-6)
    assert (batch.size, batch.drawable, batch.inserted) == (200, 200, 200)
    assert batch.total_mass == pytest.approx(power_sum(200, ALPHA))


@pytest.mark.parametrize("prefetch", [1, 2, 3, 4, 9])
def test_a_batch_reflects_the_updates_before_it_was_requested(table: Table, prefetch: int) -> None:
    exact = fill(table, levels=50)
    keys = np.array(list(exact))
    with table.sampler(32, beta=0.4, prefetch=prefetch) as sampler:
        next(sampler)
        for first in (keys[5], keys[150]):
            sampler.update_priorities(keys, np.where(keys == first, 1e6, 1.0))
            for _ in range(prefetch - 1):
                next(sampler)
            batch = next(sampler)
            np.testing.assert_allclose(batch.probabilities[batch.row_keys == first], 1 / power_sum(200, ALPHA))
            assert (batch.probabilities[batch.row_keys != first] < 0.9 / power_sum(200, ALPHA)).all()
        sampler.flush()
        assert sampler.updated == 400


def test_a_batch_of_a_table_with_steps_has_whole_windows(servers: list[ServerProcess], reach: Reach) -> None:
    columns: dict[str, Any] = {"obs": Column("float32"), "next_obs": Next("obs")}
    table = reach(servers).create_table("s", columns=columns, steps=Transitions(1), capacity=900, backend="rank")
    with table.writer() as writer:
        for episode in range(12):
            for step in range(20):
                writer.append(obs=100 * episode + step)
            writer.end_episode({"obs": 100 * episode + 20})
    with table.sampler(64, beta=0.4, prefetch=4) as sampler:
        for _ in range(10):
            batch = next(sampler)
            assert batch.drawable == 240
            assert (batch["next_obs"] == batch["obs"] + 1).all()
            sampler.update_priorities(batch, np.abs(batch["obs"]))


def test_rows_that_are_overwritten_before_they_are_fetched_are_drawn_anew(table: Table) -> None:
    fill(table, levels=50)
    shard = shards_of(table)[0]
    with table.sampler(200, beta=0.0, prefetch=4) as sampler:
        for _ in range(20):
            keys = shard.insert(rows(np.arange(300)))
            batch = next(sampler)
            assert batch.batch_size == 200
            live = batch.row_keys[batch.row_keys < 1 << 48]
            assert (batch["number"][batch.row_keys < 1 << 48] >= 0).all()
            assert live.max(initial=0) <= keys[-1]


def test_ranks_are_those_of_the_others_while_a_server_is_away(servers: list[ServerProcess], table: Table) -> None:
    exact = fill(table, levels=10**6)
    with table.sampler(100, beta=0.0, prefetch=4) as sampler:
        next(sampler)
        servers[2].kill()
        wait_until(lambda: next(sampler) is not None and away(sampler) == [2], "it is away")
        for _ in range(5):
            next(sampler)
        left = [key for key in exact if key >> 48 < 2]
        rank = {key: number + 1 for number, key in enumerate(left)}
        for _ in range(20):
            batch = next(sampler)
            expected = [rank[key] ** -ALPHA / power_sum(70, ALPHA) for key in batch.row_keys.tolist()]
            np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-12)
        servers[2].restart()
        wait_until(lambda: next(sampler).drawable == 200 and away(sampler) == [], "it is back")


def test_an_empty_table_has_nothing_to_draw_until_any_shard_has(table: Table) -> None:
    with table.sampler(8, beta=0.4, prefetch=1) as sampler:
        with pytest.raises(TableEmptyError):
            next(sampler)
        keys = table.insert(rows(np.arange(3)))
        assert set(next(sampler).row_keys.tolist()) <= set(keys.tolist())
        table.reset()
        with pytest.raises(TableEmptyError):
            next(sampler)
        keys = table.insert(rows(np.arange(3)))
        assert set(next(sampler).row_keys.tolist()) <= set(keys.tolist())
