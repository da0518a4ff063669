"""Batches and rows of tables of steps as JAX pytrees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from replay_client import Column, Discount, InvalidArgumentError, Mask, Sequences, Table

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
