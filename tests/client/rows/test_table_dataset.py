"""Tables as datasets of torch's data loaders."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from replay_client import InvalidArgumentError, ReplayClient, Table
from replay_client.torch import TableDataset, TensorBatch, to_torch
from torch.utils.data import DataLoader

from tests.client.conftest import COLUMNS
from tests.client.numbered import assert_whole, rows
from tests.support.access import ALL, MINE, write_usual_tokens
from tests.support.server_process import ServerProcess

BATCH = 8


def loader_of(dataset: TableDataset, **options: Any) -> DataLoader[TensorBatch]:
    return DataLoader(dataset, batch_size=None, **options)


def learn(table: Table, loader: DataLoader[TensorBatch], steps: int = 6) -> list[TensorBatch]:
    """Learn from batches, and check them."""
    batches = list(islice(loader, steps))
    for batch in batches:
        assert type(batch) is TensorBatch
        assert_whole({name: column.numpy() for name, column in batch.items()})
        np.testing.assert_array_equal(batch.row_keys, batch["number"])
        assert batch.weights.shape == (BATCH,)
        assert table.update_priorities(batch, torch.full((BATCH,), 0.5)).stale == 0
        assert (table.read(batch).priorities == 0.5).all()
    assert len({tuple(batch.row_keys) for batch in batches}) == len(batches)
    return batches


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_loader_without_workers_draws_batches(table: Table, device: str | None) -> None:
    table.insert(rows(range(1000)), priorities=np.ones(1000))
    learn(table, loader_of(TableDataset(table, BATCH, beta=0.4, device=device)))


FORKING = """
import sys
from itertools import islice
import numpy as np
from replay_client import ReplayClient, TableEmptyError
from replay_client.torch import TableDataset
from torch.utils.data import DataLoader
from tests.client.numbered import rows
from tests.client.rows.test_table_dataset import BATCH, learn

with ReplayClient(sys.argv[1]) as client:
    table = client.table(sys.argv[2])
    dataset = TableDataset(table, BATCH, beta=0.4, prefetch=1, timeout_s=0)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    batches = iter(loader)
    try:
        next(batches)
    except TableEmptyError as error:
        print(type(error).__name__)
    batches._shutdown_workers()  # the garbage collector would wait 5 s for them
    table.insert(rows(range(1000)), priorities=np.ones(1000))
    print({batch.beta for batch in learn(table, loader)})
    batches = iter(loader)
    next(batches)
    dataset.beta = 0.7
    print([batch.beta for batch in list(islice(batches, 20))[-2:]])  # one of each worker
"""


def test_forked_workers_draw_different_batches_and_see_the_exponent_change(table: Table, client: ReplayClient) -> None:
    """In a new process, because forking one with many threads can deadlock."""
    command = [sys.executable, "-W", "error", "-c", FORKING, client.address, table.name]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines() == ["TableEmptyError", "{0.4}", "[0.7, 0.7]"]


def test_spawned_workers_have_the_token(start_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    server = start_server("--tokens", str(write_usual_tokens(tmp_path / "tokens.toml")))
    with ReplayClient(server.address, token=ALL) as client:
        table = client.create_table(f"{MINE}table", columns=COLUMNS, capacity=1000)
        table.insert(rows(range(1000)))
        dataset = TableDataset(table, BATCH, beta=0.4, device="meta")  # not the device of workers
        learn(table, loader_of(dataset, num_workers=2, multiprocessing_context="spawn"))


def test_the_exponent_may_change_while_batches_are_drawn(table: Table) -> None:
    table.insert(rows(range(20)))
    dataset = TableDataset(table, BATCH, beta=0.4, prefetch=1)
    batches = iter(dataset)
    assert next(batches).beta == dataset.beta == 0.4
    dataset.beta = 0.7
    assert [next(batches) for _ in range(3)][-1].beta == dataset.beta == 0.7
    with pytest.raises(InvalidArgumentError, match="beta"):
        dataset.beta = -1.0
    assert TableDataset(table, BATCH).beta == 0.4


def test_a_loader_that_would_stack_batches_is_told_what_to_do(table: Table) -> None:
    table.insert(rows(range(20)))
    with pytest.raises(InvalidArgumentError, match="a DataLoader of batches needs batch_size=None"):
        next(iter(DataLoader(TableDataset(table, BATCH, beta=0.4))))


def test_columns_of_tensors_can_be_replaced(table: Table) -> None:
    table.insert(rows(range(20)))
    batch = to_torch(table.sample(BATCH, beta=0.4))
    batch["obs"] = batch["obs"].double()
    batch["new"] = torch.zeros(BATCH, 2)
    del batch["done"]
    assert list(batch) == ["number", "obs", "new"]
    assert batch["obs"].dtype is torch.float64


def test_tensors_move_between_devices(table: Table) -> None:
    table.insert(rows(range(20)))
    batch = to_torch(table.sample(BATCH, beta=0.4))
    moved = to_torch(batch, "meta")
    assert {each.device.type for each in (*moved.values(), moved.weights, moved.probabilities)} == {"meta"}
    assert moved.row_keys is batch.row_keys
    assert to_torch(batch)["obs"] is batch["obs"]
