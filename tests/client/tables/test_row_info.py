"""What batches say of their rows if asked: how often each row was drawn before, and its age."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from replay_client import Batch, Column, InvalidArgumentError, ReplayClient, RowInfo, Table
from replay_client.torch import TensorBatch

from tests.client.numbered import rows
from tests.support.server_process import ServerProcess

CLOCKS_S = 0.01
"""Maximum difference between times that are measured here and by the server, and rounded to float32."""


def info_of(batch: Batch | TensorBatch) -> RowInfo:
    """What a batch says, with the right dtypes and shapes."""
    info = batch.row_info
    assert info is not None
    assert (info.times_sampled.dtype.str, info.times_sampled.shape) == ("<u4", batch.row_keys.shape)
    assert (info.ages_s.dtype.str, info.ages_s.shape) == ("<f4", batch.row_keys.shape)
    return info


def check_times_sampled(batches: Iterable[Batch | TensorBatch]) -> None:
    """Check the counts of consecutive batches, which must be all draws from their table."""
    drawn = Counter[int]()
    for batch in batches:
        keys = batch.row_keys.tolist()
        assert info_of(batch).times_sampled.tolist() == [drawn[key] for key in keys]
        drawn.update(keys)


def test_only_batches_that_are_asked_to_say_it_do(table: Table) -> None:
    table.insert(rows(range(10)))
    assert table.sample(4).row_info is None
    with table.sampler(4) as sampler:
        assert next(sampler).row_info is None
    with pytest.raises(InvalidArgumentError, match="row_info: expected True or False, got 'all'"):
        table.sample(4, row_info="all")  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["sum_tree", "rank", "uniform"])
def test_each_row_says_how_often_it_was_drawn_before(new_table: Callable[..., Table], backend: str) -> None:
    table = new_table(backend=backend)
    table.insert(rows(range(20)))
    check_times_sampled([table.sample(16, row_info=True) for _ in range(10)])


@pytest.mark.parametrize("options", [{"prefetch": 1}, {"prefetch": 4}, {"prefetch": 1, "device": "cpu"}])
def test_so_do_rows_of_samplers(table: Table, options: dict[str, Any]) -> None:
    table.insert(rows(range(20)))
    with table.sampler(16, row_info=True, **options) as sampler:
        check_times_sampled([next(sampler) for _ in range(10)])


def test_a_row_of_a_queue_counts_its_deliveries(new_table: Callable[..., Table]) -> None:
    table = new_table(backend="fifo", max_times_sampled=3)
    table.insert(rows(range(4)))
    assert info_of(table.sample(6, row_info=True)).times_sampled.tolist() == [0] * 6, "one request"
    counts = [info_of(table.sample(1, row_info=True)).times_sampled.item() for _ in range(6)]
    assert counts == [0, 1, 2, 0, 1, 2]


def test_ages_are_the_time_since_the_insert(table: Table) -> None:
    began = time.monotonic()
    table.insert(rows(range(10)))
    time.sleep(0.3)
    table.insert(rows(range(10)))
    time.sleep(0.1)
    batch = table.sample(200, row_info=True)
    ended = time.monotonic()
    ages = info_of(batch).ages_s
    old, new = ages[batch.row_keys < 10], ages[batch.row_keys >= 10]
    assert new.min() >= 0.1 - CLOCKS_S
    assert old.min() >= new.max() + 0.3 - CLOCKS_S
    assert old.max() <= ended - began + CLOCKS_S


def test_mixed_batches_join_what_their_tables_say(client: ReplayClient, new_table: Callable[..., Table]) -> None:
    tables = [new_table(), new_table()]
    for table in tables:
        table.insert(rows(range(5)))
    with client.mixed_sampler({tables[0].name: 4, tables[1].name: 8}, prefetch=1, row_info=True) as sampler:
        batches = [next(sampler) for _ in range(5)]
    for name in (table.name for table in tables):
        check_times_sampled([batch.parts[name] for batch in batches])
    for batch in batches:
        parts = [info_of(part) for part in batch.parts.values()]
        assert info_of(batch).times_sampled.tolist() == np.concatenate([part.times_sampled for part in parts]).tolist()
        assert info_of(batch).ages_s.tolist() == np.concatenate([part.ages_s for part in parts]).tolist()


def test_rows_on_several_servers_say_it_too(start_server: Callable[..., ServerProcess]) -> None:
    servers = [start_server() for _ in range(3)]
    with ReplayClient(",".join(server.address for server in servers)) as client:
        table = client.create_table("shared", columns={"number": Column("int64")}, capacity=300)
        for _ in range(30):
            table.insert({"number": np.arange(3)})
        with table.sampler(16, prefetch=1, row_info=True) as sampler:
            check_times_sampled([next(sampler) for _ in range(10)])
