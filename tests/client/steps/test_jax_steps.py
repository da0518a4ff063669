"""Batches and rows of tables of steps as JAX pytrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from replay_client import Column, Discount, InvalidArgumentError, Mask, ReplayClient, Sequences, Table

jax = pytest.importorskip("jax")
pytest.importorskip("replay_client.jax")
jnp = jax.numpy


@pytest.fixture
def table(new_table: Callable[..., Table]) -> Table:
    """A table of sequences, with one episode of 9 steps."""
    columns = {"x": Column("float32", 2), "state": Column("float16", 3, at="start"), "d": Discount(), "mask": Mask()}
    table = new_table(columns=columns, steps=Sequences(4, burn_in=2), backend="uniform")
    with table.writer() as writer:
        for step in range(9):
            writer.append(x=np.full(2, step), state=np.full(3, step))
        writer.end_episode(x=np.full(2, 9), terminated=True)
    return table


def test_a_batch_of_sequences_becomes_one_of_jax_arrays(table: Table) -> None:
    batch = table.sample(8)
    made = jax.tree.map(jnp.asarray, batch)
    assert {name: array.shape for name, array in made.items()} == {
        "x": (8, 6, 2), "state": (8, 3), "d": (8, 6), "mask": (8, 6),
    }  # fmt: skip
    for name, array in made.items():
        np.testing.assert_array_equal(array, batch[name])
    assert made.drawable == 9
    total = jax.jit(lambda each: (each["x"].sum(axis=-1) * each["mask"]).sum())(made)
    assert float(total) == pytest.approx((batch["x"].sum(axis=-1) * batch["mask"]).sum())
    table.update_priorities(made, np.ones(8))


def test_rows_keep_their_steps(table: Table) -> None:
    rows = table.read(np.arange(10))
    made = jax.tree.map(jnp.asarray, rows)
    np.testing.assert_array_equal(np.asarray(made.steps), np.arange(10))
    assert made.ends.tolist() == [0] * 9 + [2]
    assert np.asarray(made.streams).tolist() == rows.streams.tolist()


def test_positions_that_jax_may_have_moved_are_refused(table: Table) -> None:
    batch = table.sample(8)
    made = jax.tree.map(lambda leaf: leaf[::-1], batch)
    with pytest.raises(InvalidArgumentError, match="expected the batch as it was drawn"):
        made.position_keys  # noqa: B018
    with pytest.raises(InvalidArgumentError, match="expected the batch as it was drawn"):
        table.update_priorities(made, np.ones((8, 4)))
    table.update_priorities(batch, np.asarray(jnp.ones((8, 4))))
    table.update_priorities(batch, jnp.ones((8, 4)))


def test_a_batch_on_a_device_keeps_its_keys_and_positions(table: Table) -> None:
    from replay_client.jax import to_jax

    (device, *_) = jax.devices()
    batch = table.sample(8)
    values = {name: column.copy() for name, column in batch.items()}
    made: Any = to_jax(batch, device)
    assert {array.devices().pop() for array in made.values()} == {device}
    table.update_priorities(made, jnp.abs(made.weights))
    np.testing.assert_array_equal(made.position_keys, batch.position_keys)
    table.update_priorities(made, jnp.ones((8, 4)))
    assert set(table.read(made.row_keys).priorities.tolist()) == {1.0}
    del batch
    with table.sampler(8, prefetch=2) as sampler:  # whose batches take the memory of those that were freed
        for later, _ in zip(sampler, range(20), strict=False):
            assert to_jax(later)["x"].shape == (8, 6, 2)
    for name, array in made.items():
        np.testing.assert_array_equal(array, values[name])


def test_a_mixed_batch_on_a_device_has_its_parts(table: Table, client: ReplayClient) -> None:
    from replay_client.jax import to_jax

    with client.mixed_sampler({table.name: 4}) as sampler:
        batch = next(sampler)
        made: Any = to_jax(batch)
        np.testing.assert_array_equal(made.parts[table.name]["x"], batch["x"])
        sampler.update_priorities(made, jnp.ones(4))
