"""While rows are inserted, reported probabilities are those that were used, and hardly differ from the exact ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from replay_client import ReplayClient, ShardedTable
from replay_client._shards.round import Bundle, Round
from replay_client.sync.shards.drawing import sharded_sampler

from tests.client.shards.conftest import shards_of
from tests.client.shards.test_sharded_draws import rows
from tests.client.shards.test_sharded_tables import make
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]
AT_ONCE = 250
PER_S = 25_000
BATCH = 256


@pytest.mark.long
def test_draws_while_rows_are_inserted_have_the_reported_probabilities(
    servers: list[ServerProcess], reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    inserted, distance = drawn(servers, reach, monkeypatch, old=300_000, batches=2000)
    print(f"{inserted:.0f} rows/s inserted, mean distance of q {distance:.2e}")
    assert distance <= 1e-3


def test_draws_stay_unbiased_while_rows_are_inserted(
    servers: list[ServerProcess], reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn(servers, reach, monkeypatch, old=30_000, batches=150)


def drawn(
    servers: list[ServerProcess], reach: Reach, monkeypatch: pytest.MonkeyPatch, *, old: int, batches: int
) -> tuple[float, float]:
    """Draw during inserts and check the draws; return rows inserted per second, and the mean distance of q.

    A row with probability P is expected B * P times in a batch. So the rows that are there from the beginning, each
    divided by B * P when it is drawn, are expected to add up to their number ``old`` in every batch.
    """
    client = reach(servers)
    table = make(client, capacity=3_000_000)
    assert isinstance(table, ShardedTable)
    random = np.random.default_rng(5)
    for shard_id, shard in shards_of(table).items():  # unequal: 1/6, 2/6, 3/6
        size = old * (shard_id + 1) // 6
        shard.insert(rows(np.full(size, -1)), priorities=random.gamma(1.0, 1.0, size) + 0.1)
    distances: list[float] = []
    counts, expected, spread = np.zeros(3), np.zeros(3), np.zeros(3)

    class Watched(Bundle):
        def __init__(self, drawn: Round, *arguments: object) -> None:
            super().__init__(drawn, *arguments)  # type: ignore[arg-type]
            used = np.array([drawn.chances.get(shard_id, 0.0) for shard_id in range(3)])
            masses = {part.shard_id: part.batch.total_mass for part in drawn.parts}
            exact = np.array([masses.get(shard_id, 0.0) for shard_id in range(3)])
            if len(masses) == 3:
                distances.append(float(abs(used - exact / exact.sum()).sum() / 2))
            for part in drawn.parts:
                counts[part.shard_id] += part.batch.batch_size
            expected[:] += BATCH * drawn.batches * used
            spread[:] += BATCH * drawn.batches * used * (1 - used)

    monkeypatch.setattr(sharded_sampler, "Bundle", Watched)
    is_over = threading.Event()

    def insert() -> float:
        began, count = time.monotonic(), 0
        while not is_over.is_set():
            table.insert(rows(np.arange(AT_ONCE)))
            count += AT_ONCE
            time.sleep(max(0.0, began + count / PER_S - time.monotonic()))
        return count / (time.monotonic() - began)

    estimates = []
    with ThreadPoolExecutor(1) as pool, table.sampler(BATCH, beta=1.0, draw_mode="independent", prefetch=3) as sampler:
        inserting = pool.submit(insert)
        try:
            for _ in range(batches):
                batch = next(sampler)
                is_old = batch["number"] == -1
                estimates.append((1.0 / (BATCH * batch.probabilities[is_old])).sum())
        finally:
            is_over.set()
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - old) / error < 4
    assert (abs(counts - expected) / np.sqrt(spread) < 4).all()
    return inserting.result(), float(np.mean(distances))
