"""Batches as tensors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from replay_client import Table
from replay_client.torch import to_torch

from tests.client.numbered import rows

BOTH_DATA_PATHS = True


def test_tensors_hold_what_the_batch_holds(table: Table) -> None:
    table.insert(rows(range(20)))
    batch = table.sample(8, beta=0.4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensors = to_torch(batch)
    assert len(tensors) == 8
    assert tensors["obs"].dtype == torch.float32
    assert tensors["done"].dtype == torch.bool
    assert tensors.weights.dtype == torch.float32
    for name in batch:
        np.testing.assert_array_equal(tensors[name].numpy(), batch[name])
    np.testing.assert_array_equal(tensors.batch.keys, batch.keys)


def test_on_the_cpu_nothing_is_copied(table: Table) -> None:
    table.insert(rows(range(20)))
    batch = table.sample(8, beta=0.4)
    tensors = to_torch(batch, torch.device("cpu"))
    tensors["obs"].zero_()
    assert not batch["obs"].any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_a_gpu_the_tensors_are_there(table: Table) -> None:
    table.insert(rows(range(20)))
    batch = table.sample(8, beta=0.4)
    tensors = to_torch(batch, "cuda")
    assert tensors["obs"].device.type == "cuda"
    np.testing.assert_array_equal(tensors["obs"].cpu().numpy(), batch["obs"])
