"""Batches: content, and reproducibility with seeds."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from replay_proto.v1 import replay_pb2
from replay_server.backends import BACKENDS

from tests.support.caller import CalledTable, Caller, wire_only
from tests.support.deadlines import wait_until
from tests.support.refusals import refused
from tests.support.server_process import ServerProcess

ALL_DATA_PATHS = True

NewTable = Callable[..., CalledTable]
INDEPENDENT = replay_pb2.DRAW_MODE_INDEPENDENT


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_holds_the_rows_of_its_keys_and_the_state_of_the_table(new_table: NewTable, backend: str) -> None:
    table = new_table(backend=backend, capacity=50)
    table.insert(np.arange(80) * 7, 1.0 + np.arange(80))
    batch = table.sample(32, beta=0.5)
    assert batch.values.tolist() == (batch.keys * 7).tolist()
    assert ((batch.keys >= 30) & (batch.keys < 80)).all()
    assert (batch.batch.beta, batch.batch.size, batch.batch.inserted) == (0.5, 50, 80)
    assert batch.batch.total_mass == table.stats().total_mass
    assert (batch.probabilities >= batch.batch.smallest_probability).all()
    assert (batch.weights > 0).all()
    assert (batch.weights <= 1).all()


def test_a_large_batch_is_whole(new_table: NewTable) -> None:
    """Nearly the maximum number of rows per call."""
    table = new_table(capacity=10_000)
    table.insert(np.arange(10_000) * 3)
    batch = table.sample(30_000)
    assert np.array_equal(batch.values, batch.keys * 3)


# Rule 7: a seed.


def _some_work(table: CalledTable) -> list[bytes]:
    """Run operations of every kind, and return everything that they drew."""
    drawn = []
    for step in range(12):
        table.insert(range(step * 30, step * 30 + 30), 1.0 + np.arange(30) % 5 if step % 2 else None)
        batch = table.sample(40, beta=0.4, draw_mode=INDEPENDENT if step % 3 == 0 else 0)
        table.update(batch.keys, np.abs(np.sin(batch.keys + step)))
        drawn += [batch.batch.SerializeToString(deterministic=True), batch.rows]
        if step == 7:
            table.reset()
    return drawn


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_seed_makes_draws_repeat(new_table: NewTable, backend: str) -> None:
    first, second = (new_table(backend=backend, seed=3) for _ in range(2))
    assert _some_work(first) == _some_work(second)


@wire_only
@pytest.mark.parametrize("backend", BACKENDS)
def test_other_seeds_draw_otherwise(new_table: NewTable, backend: str) -> None:
    drawn = {b"".join(_some_work(new_table(backend=backend, seed=seed))) for seed in (0, 1, 2, None, None)}
    assert len(drawn) == 5


@wire_only
def test_looking_at_a_seeded_table_does_not_change_its_draws(new_table: NewTable) -> None:
    first, second = (new_table(seed=3) for _ in range(2))
    for each in (first, second):
        each.insert(range(50))
    for _ in range(3):
        second.stats()
        second.describe()
        second.read(range(10))
        with refused("INVALID_FIELD"):
            second.sample(0)
    assert first.sample(100).keys.tolist() == second.sample(100).keys.tolist()


# Waiting for rows.


def test_a_sample_waits_until_rows_come(
    table: CalledTable, server: ServerProcess, call: Callable[[ServerProcess], Caller]
) -> None:
    drawn: list[int] = []
    other = table.through(call(server))
    waiting = threading.Thread(target=lambda: drawn.extend(other.sample(5, wait_s=60.0).values))
    waiting.start()
    wait_until(lambda: table.stats().waiting == 1, "the sample waits")
    table.insert([42])
    waiting.join()
    assert drawn == [42] * 5
    assert table.stats().waiting == 0
