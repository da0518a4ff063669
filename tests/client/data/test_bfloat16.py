"""Columns of the dtype bfloat16 on every path that rows take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from replay_client import Column, InvalidArgumentError, ReplayClient, Sequences, Stack, Table
from replay_client.torch import to_torch

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NewTable = Callable[..., Table]
# Exact in bfloat16, and the largest number.
VALUES = np.array([[0.0, -1.5], [2.0**100, -(2.0**-100)], [3.3895313892515355e38, np.inf]])


@pytest.mark.parametrize("given", [lambda v: v, lambda v: v.astype(BFLOAT16), torch.tensor, np.float32])
def test_values_come_back_from_any_kind_of_array(new_table: NewTable, given: Callable[[Any], Any]) -> None:
    table = new_table(columns={"x": Column(torch.bfloat16, 2)})
    keys = table.insert({"x": given(VALUES)})
    found = table.read(keys)["x"]
    assert (found.dtype, found.astype(np.float64).tolist()) == (BFLOAT16, VALUES.tolist())
    assert str(table.describe().schema["x"]) == "bfloat16[2]"


def test_steps_come_back_on_every_path(new_table: NewTable) -> None:
    """Through a writer's fast and slow paths, stacks, a mutable column, samplers, tensors and tensors of JAX."""
    columns = {
        "x": Column("bfloat16"),
        "long": Column("bfloat16", 300),
        "latent": Column("bfloat16", 3, mutable=True),
        "stack": Stack("x", 2),
    }
    table = new_table(columns=columns, steps=Sequences(length=3, period=3), backend="uniform")
    with table.writer() as writer:
        for step in range(6):
            writer.append(x=float(step), long=np.full(300, step, BFLOAT16), latent=torch.full((3,), step))
        writer.end_episode(x=6.0, long=np.full(300, 6.0), latent=np.zeros(3))
    with table.sampler(4) as sampler:
        batch = next(sampler)
        starts = np.asarray(batch["x"][:, 0], np.float64)
        assert set(starts.tolist()) <= {0.0, 3.0}
        np.testing.assert_array_equal(batch["long"][:, 1, 7].astype(np.float64), starts + 1)
        np.testing.assert_array_equal(batch["stack"][:, 2].astype(np.float64), starts[:, None] + [1, 2])
        tensors = to_torch(batch)
        assert tensors["latent"].dtype is torch.bfloat16
        assert tensors["latent"][:, 2, 0].tolist() == (starts + 2).tolist()
        sampler.update(batch.position_keys[:, 0], {"latent": tensors["latent"][:, 0] + 50})
        sampler.flush()
    keys = np.unique(batch.position_keys[:, 0])
    assert table.read(keys)["latent"][:, 1].astype(np.float64).tolist() == (keys + 50).tolist()
    jax = pytest.importorskip("jax")
    from replay_client.jax import to_jax

    moved = to_jax(batch)
    assert moved["x"].dtype == jax.numpy.bfloat16
    np.testing.assert_array_equal(np.asarray(moved["x"]), batch["x"])


def test_numbers_beyond_the_largest_are_refused(new_table: NewTable) -> None:
    table = new_table(columns={"x": Column("bfloat16", 2)})
    with pytest.raises(InvalidArgumentError, match=r"expected bfloat16, .* to 3\.38953e\+38, got 3\.4e\+38"):
        table.insert({"x": [[1.0, 3.4e38]]})
    assert table.insert({"x": [[1.001, np.nan]]}).tolist() == [0]
    assert float(table.read([0])["x"][0, 0]) == 1.0


def test_a_table_survives_a_parquet_file(new_table: NewTable, client: ReplayClient, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    table = new_table(columns={"x": Column("bfloat16", 2), "y": Column("bfloat16")}, capacity=10)
    table.insert({"x": VALUES, "y": [1.0, 2.0, 3.0]})
    table.to_parquet(tmp_path / "rows.parquet")
    copy = client.load_parquet(tmp_path / "rows.parquet", name=f"{table.name}-copy")
    try:
        assert copy.schema == table.schema
        np.testing.assert_array_equal(copy.read(np.arange(3))["x"], VALUES.astype(BFLOAT16))
    finally:
        copy.drop()
