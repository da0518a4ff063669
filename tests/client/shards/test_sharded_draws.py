"""A table on several servers is drawn exactly as one table would be."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_client import (
    ClosedError,
    Column,
    ConcurrentUseError,
    DeadlineExceededError,
    DrawMode,
    InvalidArgumentError,
    ReplayClient,
    Sequences,
    ServerUnavailableError,
    Table,
    TableEmptyError,
)
from replay_client._shards.keys import global_keys, shard_ids
from replay_client.sync.shards.drawing.shard_stream import ShardStream
from replay_client.sync.shards.drawing.sharded_sampler import ShardedSampler
from replay_client.sync.shards.servers.members import Member
from scipy import stats

from tests.client.shards.conftest import COLUMNS, shards_of
from tests.support.deadlines import PATIENCE_S, wait_until
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]
SIZES = [10, 60, 130]
"""Rows in each shard."""
ALPHA = 0.7


def fill(table: Table) -> dict[int, float]:
    """Give the shards different rows of different priorities; return the probability of each row, by key."""
    random = np.random.default_rng(7)
    masses: dict[int, float] = {}
    for (shard_id, shard), size in zip(shards_of(table).items(), SIZES, strict=True):
        priorities = random.gamma(1.0, 1.0 + 3.0 * shard_id, size)
        keys = shard.insert(rows(np.arange(size) + 1000 * shard_id), priorities=priorities)
        masses |= dict(zip(global_keys(shard_id, keys).tolist(), (priorities**ALPHA).tolist(), strict=True))
    total = sum(masses.values())
    return {key: mass / total for key, mass in masses.items()}


def rows(numbers: NDArray[np.int64]) -> dict[str, Any]:
    return {"number": numbers, "obs": np.repeat(numbers[:, None], 3, axis=1).astype(np.float32)}


@pytest.fixture
def table(servers: list[ServerProcess], reach: Reach) -> Table:
    client = reach(servers)
    return client.create_table("t", columns=COLUMNS, capacity=900, alpha=ALPHA, epsilon=0.0, seed=3)


def test_a_second_thread_is_refused_while_another_waits_and_may_close(table: Table) -> None:
    sampler = table.sampler(4, beta=0.4, timeout_s=PATIENCE_S)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, sampler)
        wait_until(lambda: sampler._one_caller.is_busy, "it waits for rows")
        for call in (lambda: next(sampler), sampler.flush):
            with pytest.raises(ConcurrentUseError):
                call()
        sampler.close()
        with pytest.raises(ClosedError):
            waiting.result(PATIENCE_S / 2)


@pytest.mark.parametrize("mode", ["independent", "stratified"])
def test_every_row_is_drawn_with_its_part_of_the_total_mass(table: Table, mode: DrawMode) -> None:
    check_draws(table, mode, batches=200)


@pytest.mark.long
def test_a_million_draws_have_the_exact_distribution(table: Table) -> None:
    check_draws(table, "independent", batches=2000)


def check_draws(table: Table, mode: DrawMode, batches: int) -> None:
    """Draw batches of 500 rows, and compare their probabilities, weights and rows with the exact ones."""
    exact = fill(table)
    keys = []
    with table.sampler(500, beta=0.5, draw_mode=mode, prefetch=4) as sampler:
        for _ in range(batches):
            batch = next(sampler)
            keys.append(batch.row_keys)
            expected = np.array([exact[key] for key in batch.row_keys.tolist()])
            np.testing.assert_allclose(batch.probabilities, expected, rtol=0, atol=1e-12)
            weights = ((expected.min() / expected) ** 0.5).astype(np.float32)
            np.testing.assert_allclose(batch.weights, weights, rtol=1e-6)
            assert (
                batch["number"].tolist() == (batch.row_keys & 0xFFFF).tolist()
                or (batch["number"] == shard_ids(batch.row_keys) * 1000 + (batch.row_keys & 0xFFFF)).all()
            )
    counts = counts_of(np.concatenate(keys), exact)
    expected = np.array(list(exact.values())) * counts.sum()
    if mode == "independent":
        assert stats.chisquare(counts, expected).pvalue > 0.001
    assert np.abs(counts - expected).max() <= 6 * np.sqrt(expected.max())


def counts_of(keys: NDArray[np.int64], exact: dict[int, float]) -> NDArray[np.int64]:
    found = dict(zip(*(each.tolist() for each in np.unique(keys, return_counts=True)), strict=True))
    return np.array([found.get(key, 0) for key in exact])


def test_equal_draws_from_the_shards_would_be_noticed(table: Table) -> None:
    exact = fill(table)
    keys = []
    for shard_id, shard in shards_of(table).items():
        for _ in range(5):
            batch = shard.sample(6_000, beta=0.0, draw_mode="independent")
            keys.append(global_keys(shard_id, batch.row_keys))
    counts = counts_of(np.concatenate(keys), exact)
    assert stats.chisquare(counts, np.array(list(exact.values())) * counts.sum()).pvalue < 1e-9


@pytest.mark.timed  # beside other programs, a learner that waits for the processor looks like one that computes
def test_only_a_learner_that_computes_gets_batches_requested_in_advance(table: Table) -> None:
    """One that only draws would wait for every reply anyway, so fewer messages are better."""
    fill(table)
    with table.sampler(32, beta=0.4, prefetch=4) as sampler:

        def left_after_a_step(computing_s: float = 0.0) -> int:
            next(sampler)
            left = sampler.in_flight
            if computing_s:  # on some machines, even sleep(0) takes longer than a learner that only draws
                time.sleep(computing_s)  # stands for the learner's work; the sampler sees only how long it takes
            return left

        deadline = time.monotonic() + PATIENCE_S
        while left_after_a_step():
            assert time.monotonic() < deadline, "no message requested all batches"
        for _ in range(30):
            left_after_a_step(0.002)
        assert min(left_after_a_step(0.002) for _ in range(12)) > 0


def test_prefetch_may_be_changed_at_any_time(table: Table) -> None:
    fill(table)
    with table.sampler(32, beta=0.4, prefetch=16) as sampler:
        for prefetch in (16, 2, 16, 1, 5):
            sampler.prefetch = prefetch
            for _ in range(40):
                assert next(sampler).batch_size == 32
            assert sampler.in_flight < prefetch


def test_weights_of_the_whole_table_are_over_its_least_probable_row(table: Table) -> None:
    exact = fill(table)
    batch = table.sample(64, beta=0.8, weight_norm="table")
    assert batch.smallest_probability == pytest.approx(min(exact.values()), rel=1e-12)
    np.testing.assert_allclose(batch.weights, (min(exact.values()) / batch.probabilities) ** 0.8, rtol=1e-6)
    assert (batch.table_size, batch.drawable, batch.inserted) == (200, 200, 200)


def test_the_size_of_batches_is_shown(table: Table) -> None:
    with table.sampler(5) as sampler:
        assert sampler.batch_size == 5


def test_updates_reach_the_shards_of_the_rows(table: Table) -> None:
    exact = fill(table)
    chosen = np.array([key for number, key in enumerate(exact) if number % 3 == 0])
    with table.sampler(32, beta=0.4, prefetch=2) as sampler:
        next(sampler)
        sampler.update_priorities(chosen, np.arange(len(chosen)) + 1.0)
        unknown = np.array([7 << 48, -5])
        sampler.update_priorities(unknown, [1.0, 1.0])
        sampler.flush()
        assert (sampler.updated, sampler.stale) == (len(chosen), 2)
    found = table.read(np.concatenate([chosen[::-1], unknown, chosen[:1]]))
    assert found.row_keys.tolist() == [*chosen[::-1].tolist(), int(chosen[0])]
    assert found.priorities.tolist() == [*(np.arange(len(chosen)) + 1.0)[::-1].tolist(), 1.0]
    result = table.update_priorities(np.concatenate([chosen, unknown]), np.ones(len(chosen) + 2))
    assert (result.updated, result.stale) == (len(chosen), 2)


@pytest.mark.parametrize("only", [0, 1, 2])
def test_rows_without_mass_are_not_drawn_while_another_shard_has_mass(table: Table, only: int) -> None:
    keys = np.array(list(fill(table)))
    with table.sampler(300, beta=1.0, prefetch=1) as sampler:  # so many that each shard has some
        next(sampler)
        sampler.update_priorities(keys, (shard_ids(keys) == only).astype(float))
        batch = next(sampler)
        assert set(shard_ids(batch.row_keys)) == {only}
        np.testing.assert_allclose(batch.probabilities, 1 / SIZES[only])
        then = (only + 1) % len(SIZES)
        sampler.update_priorities(keys, (shard_ids(keys) == then).astype(float))
        assert set(shard_ids(next(sampler).row_keys)) == {then}
        sampler.update_priorities(keys, np.zeros(len(keys)))
        next(sampler)
        assert len(set(shard_ids(next(sampler).row_keys))) > 1  # by rule: no row has mass


def test_new_rows_get_the_largest_priority_of_all_shards(table: Table) -> None:
    fill(table)
    first, *others = shards_of(table).values()
    with table.sampler(32, beta=0.4, prefetch=1) as sampler:
        next(sampler)
        sampler.update_priorities(np.array([2 << 48]), [1e6])
        next(sampler)
        next(sampler)
        sampler.flush()
    for shard in (first, *others):
        keys = shard.insert(rows(np.array([1])))
        assert shard.read(keys).priorities.tolist() == [1e6]


def test_an_empty_table_has_nothing_to_draw_until_any_shard_has(table: Table) -> None:
    with table.sampler(8, beta=0.4, timeout_s=0) as sampler:
        with pytest.raises(TableEmptyError):
            next(sampler)
        keys = table.insert(rows(np.arange(3)))
        assert set(next(sampler).row_keys.tolist()) <= set(keys.tolist())
        assert table.reset() == 3
    with table.sampler(8, beta=0.4, timeout_s=0.1) as sampler, pytest.raises(DeadlineExceededError):
        next(sampler)


@pytest.mark.parametrize("limit", [{}, {"min_size": 3}])
def test_full_shards_that_are_too_small_for_a_window_say_so(
    servers: list[ServerProcess], reach: Reach, limit: dict[str, Any]
) -> None:
    table = reach(servers).create_table(
        "crowded", columns={"x": Column("int64")}, capacity=3000, steps=Sequences(20), backend="uniform", **limit
    )
    with table.writer(streams=192) as writer:
        for step in range(32):
            writer.append_all(x=[step] * 192)
    said = "rows would hold a window of each stream, but the capacity is 1,000; .* use a larger capacity"
    with pytest.raises(TableEmptyError, match=f"although it is full: .* {said}") as refused:
        table.sample(8)
    fields = {"waited_for": "windows", "have": "1000"}
    assert refused.value.metadata.items() >= fields.items()
    with table.sampler(8, timeout_s=0.1) as sampler:
        with pytest.raises(DeadlineExceededError, match=f"waited 0.* s for windows: .* {said}") as late:
            next(sampler)
        assert isinstance(sampler, ShardedSampler)
        assert "for windows" in sampler._explain(11.0)
    assert late.value.metadata.items() >= fields.items()


def test_a_shard_that_cannot_be_opened_is_tried_again(
    servers: list[ServerProcess], reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = reach(servers[:2])
    table = client.create_table("t", columns=COLUMNS, capacity=3000)
    table.insert(rows(np.arange(100)))
    with table.sampler(64, beta=0.4) as sampler:
        assert isinstance(sampler, ShardedSampler)
        next(sampler)
        failures: list[Exception] = [OSError("too many open files"), ServerUnavailableError("away")]

        def opens_late(member: Member) -> ShardStream:
            if failures:
                raise failures.pop(0)
            return open_stream(member)

        open_stream = sampler._open_stream
        monkeypatch.setattr(sampler, "_open_stream", opens_late)
        client.shards.set([server.address for server in servers])
        with pytest.raises(OSError, match="too many open files"):
            wait_until(lambda: next(sampler) is None, "the third shard is known")
        wait_until(lambda: next(sampler) is not None and not failures, "it is tried again")
        shards_of(client.table("t"))[2].insert(rows(np.arange(1000)), priorities=np.full(1000, 1e6))
        wait_until(lambda: 2 in shard_ids(next(sampler).row_keys), "its rows are drawn")
        assert sampler.shards_away == []


def test_other_draws_than_by_priority_are_refused_over_several_servers(
    servers: list[ServerProcess], reach: Callable[..., ReplayClient]
) -> None:
    table = reach(servers).create_table("t", columns=COLUMNS, capacity=300)
    table.insert(rows(np.arange(30)))
    for mode in ("without_replacement", "newest_first"):
        with pytest.raises(InvalidArgumentError, match="draw_mode: expected another mode for a table on several"):
            table.sample(4, draw_mode=mode)
        with pytest.raises(InvalidArgumentError, match="draw_mode: expected another mode"):
            table.sampler(4, draw_mode=mode)
