"""Batches as JAX pytrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_client import Batch, Column, InvalidArgumentError, MixedBatch, ReplayClient, Rows, Table

jax = pytest.importorskip("jax")
pytest.importorskip("replay_client.jax")
jnp = jax.numpy

COLUMNS = {"obs/speed": Column("float32", 3), "action": Column("int32")}


@pytest.fixture
def table(new_table: Callable[..., Table]) -> Table:
    """A table with 20 rows of a nested observation."""
    table = new_table(columns=COLUMNS)
    table.insert({"obs/speed": np.arange(60).reshape(20, 3), "action": np.arange(20, dtype=np.int32)})
    return table


@pytest.fixture
def batch(table: Table) -> Batch:
    """A batch of 8 rows."""
    return table.sample(8, beta=0.4)


def far(batch: Batch, offset: int = 2**40) -> Batch:
    """The batch with keys that do not fit into 32 bits."""
    return Batch(**{**vars(batch), "row_keys": batch.row_keys + offset})


def keys(batch: Batch) -> NDArray[np.int64]:
    return np.asarray(batch.row_keys)


def test_a_batch_becomes_one_of_jax_arrays(batch: Batch) -> None:
    made = jax.tree.map(jnp.asarray, batch)
    assert type(made) is Batch
    assert list(made) == list(batch)
    for array in (*made.values(), made.weights, made.probabilities):
        assert isinstance(array, jax.Array)
    np.testing.assert_array_equal(made["obs"]["speed"], batch["obs"]["speed"])
    np.testing.assert_allclose(made.weights, batch.weights)
    assert (made.beta, made.table_size, made.inserted, made.batch_size) == (0.4, 20, 20, 8)
    assert repr(made) == repr(batch)


def test_a_batch_of_several_tables_keeps_the_tables_of_its_rows(
    client: ReplayClient, new_table: Callable[..., Table], table: Table
) -> None:
    other = new_table(columns=COLUMNS, backend="uniform")
    other.insert(table.read(range(20)))
    with client.mixed_sampler({table.name: 3, other.name: 5}, beta=0.4) as sampler:
        batch = next(sampler)
        made = jax.jit(lambda each: each)(jax.tree.map(jnp.asarray, batch))
        assert type(made) is MixedBatch
        np.testing.assert_array_equal(made.tables, [0] * 3 + [1] * 5)
        sampler.update_priorities(made, 7.0 + made.tables)
        assert made.parts == {}
    assert (table.read(batch.parts[table.name]).priorities == 7.0).all()
    assert (other.read(batch.parts[other.name]).priorities == 8.0).all()


def test_keys_are_not_cut_to_32_bits(batch: Batch) -> None:
    given = far(batch)
    made = jax.tree.map(jnp.asarray, given)
    assert keys(made).dtype == np.int64
    np.testing.assert_array_equal(keys(made), given.row_keys)
    np.testing.assert_array_equal(keys(jax.tree.map(np.asarray, made)), given.row_keys)


def test_what_is_done_to_the_rows_is_done_to_their_keys(batch: Batch) -> None:
    order = np.array([3, 1, 2])
    for given in (far(batch), jax.tree.map(jnp.asarray, far(batch))):
        chosen = jax.tree.map(lambda leaf: leaf[order], given)
        np.testing.assert_array_equal(keys(chosen), keys(given)[order])
        np.testing.assert_array_equal(chosen["action"], given["action"][order])
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), batch, far(batch))
    assert joined.batch_size == 16
    np.testing.assert_array_equal(joined.row_keys, np.r_[batch.row_keys, far(batch).row_keys])


def test_a_compiled_function_takes_batches_and_is_compiled_once(batch: Batch) -> None:
    traced = []

    def weighted(batch: Batch) -> tuple[Any, Batch]:
        traced.append(batch.beta)
        return batch.weights * batch["obs"]["speed"].sum(-1), batch

    step = jax.jit(weighted)
    for offset in range(3):
        given = far(batch, 2**40 + offset)
        errors, came = step(given)
        np.testing.assert_allclose(errors, batch.weights * batch["obs/speed"].sum(-1), rtol=1e-5)
        np.testing.assert_array_equal(keys(came), given.row_keys)
        assert came.beta is None  # rather than that of the first batch
    assert traced == [None]


def test_priorities_are_set_by_a_batch_of_jax_arrays(table: Table, batch: Batch) -> None:
    made = jax.tree.map(jnp.asarray, batch)
    for dtype in (jnp.float32, jnp.bfloat16):
        assert table.update_priorities(made, jnp.full(8, 2.5, dtype)).stale == 0
        assert set(table.read(made).priorities.tolist()) == {2.5}
    with table.sampler(4, beta=0.4) as sampler:
        sampler.update_priorities(made, jnp.full(8, 3.5))
        sampler.flush(timeout_s=10)
    assert set(table.read(made).priorities.tolist()) == {3.5}


def test_keys_that_arithmetic_spoiled_are_refused(table: Table, batch: Batch) -> None:
    for spoiled in (jax.tree.map(lambda leaf: jnp.asarray(leaf) * 0.5, batch), jax.tree.map(jnp.mean, batch)):
        assert repr(spoiled).startswith("<Batch of")
        with pytest.raises(InvalidArgumentError, match="arithmetic"):
            table.update_priorities(spoiled, np.ones(8))


def test_rows_are_a_pytree_too(table: Table) -> None:
    rows = table.read([3, 5])
    made = jax.tree.map(jnp.asarray, rows)
    assert type(made) is Rows
    assert made["action"].tolist() == [3, 5]
    assert made.priorities.tolist() == [1.0, 1.0]
    for name in ("row_keys", "streams", "episodes"):
        np.testing.assert_array_equal(np.asarray(getattr(made, name)), getattr(rows, name))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_jax_arrays_are_rows(new_table: Callable[..., Table], dtype: str) -> None:
    table = new_table(columns=COLUMNS)
    found = table.read(table.insert({"obs": {"speed": jnp.ones((2, 3), dtype)}, "action": jnp.array([1, 2])}))
    assert found["obs"]["speed"].tolist() == [[1.0] * 3] * 2
    with table.writer() as writer:
        writer.append(obs={"speed": jnp.ones(3, dtype)}, action=jnp.array(7), priority=jnp.array(0.5, dtype))
    assert table.read([2])["action"].tolist() == [7]
    assert table.read([2]).priorities.tolist() == [0.5]
