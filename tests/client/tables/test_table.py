"""Insert, sample, update, read and reset, one call each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from replay_client import (
    Column,
    DeadlineExceededError,
    InvalidArgumentError,
    ResourceExhaustedError,
    Table,
    TableEmptyError,
)
from replay_client._rows.mapped_rows import MappedRows

from tests.client.numbered import assert_whole, rows

ALL_DATA_PATHS = True

NewTable = Callable[..., Table]


def test_rows_come_back_as_they_went(table: Table) -> None:
    keys = table.insert(rows([7, 8, 9]), priorities=[1.0, 2.0, 3.0])
    read = table.read(keys[::-1])
    assert read.row_keys.tolist() == [2, 1, 0]
    assert read["number"].tolist() == [9, 8, 7]
    assert read.priorities.tolist() == [3.0, 2.0, 1.0]
    assert read.streams.tolist() == read.episodes.tolist() == [0, 0, 0]
    assert_whole(read.columns)


def test_only_live_keys_are_read(table: Table) -> None:
    table.insert(rows([1, 2]))
    assert table.read([5, 1, -3]).row_keys.tolist() == [1]
    nothing = table.read([99])
    assert nothing.batch_size == 0
    assert nothing["obs"].shape == (0, 3)
    assert table.read([]).batch_size == 0


@pytest.mark.parametrize("keys", [range(100), [3, 99, 150, 7, 3, -1, *range(40, 90)]], ids=["all live", "some not"])
@pytest.mark.parametrize("is_overtaken", [False, True])
def test_reads_that_take_several_requests_are_as_one(
    new_table: NewTable, monkeypatch: pytest.MonkeyPatch, keys: Sequence[int], is_overtaken: bool
) -> None:
    table = new_table(capacity=100)
    table.insert(rows(range(100)), priorities=np.arange(100.0))
    monkeypatch.setattr("replay_client._operations.table.READ_BYTES", 16 * table.schema.row_bytes)
    gather, copies = MappedRows.gather, itertools.count(1)

    def overtaken(mapped: MappedRows, some: Any, columns: Any) -> bool:
        for column in columns.values():
            column[:] = 0
        return next(copies) % 3 != 0 and gather(mapped, some, columns)

    if is_overtaken:
        monkeypatch.setattr(MappedRows, "gather", overtaken)
    first, second = table.read(keys), table.read(keys)
    for read in (first, second):  # they do not share memory
        assert read.row_keys.tolist() == read["number"].tolist() == [key for key in keys if 0 <= key < 100]
        assert read.priorities.tolist() == read["number"].tolist()
        assert_whole(read.columns)


def test_more_rows_than_the_ring_can_spare_are_all_inserted(new_table: NewTable) -> None:
    table = new_table(capacity=100)
    keys = table.insert(rows(range(1000)), priorities=np.arange(1000.0))
    assert keys.tolist() == list(range(1000))
    assert (table.describe().size, table.describe().inserted) == (100, 1000)
    read = table.read(keys)
    assert read["number"].tolist() == list(range(900, 1000))
    assert read.priorities.tolist() == list(range(900, 1000))


def test_a_batch_says_what_it_is(table: Table) -> None:
    table.insert(rows(range(10)), priorities=np.arange(1, 11))
    batch = table.sample(64, beta=0.5)
    assert batch.batch_size == 64
    assert list(batch) == ["number", "obs", "done"]
    assert "obs" in batch
    assert "keys" not in batch
    dtypes = [array.dtype.name for array in (batch.row_keys, batch.probabilities, batch.weights)]
    assert dtypes == ["int64", "float64", "float32"]
    assert (batch.beta, batch.table_size, batch.inserted) == (0.5, 10, 10)
    mass = (np.arange(1, 11) + 1e-6) ** 0.6
    assert batch.total_mass == pytest.approx(mass.sum())
    assert batch.smallest_probability == pytest.approx(mass[0] / mass.sum())
    np.testing.assert_allclose(batch.probabilities, mass[batch.row_keys] / mass.sum())
    weights = (10 * batch.probabilities) ** -0.5
    np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-6)
    assert_whole(batch.columns)
    with pytest.raises(KeyError, match="reward"):
        batch["reward"]


def test_weights_over_the_table_and_independent_draws(table: Table) -> None:
    table.insert(rows([0, 1]), priorities=[1.0, 1000.0])
    batch = table.sample(1000, beta=1.0, weight_norm="table", draw_mode="independent")
    np.testing.assert_allclose(batch.weights, batch.smallest_probability / batch.probabilities, rtol=1e-6)


def test_a_batch_is_the_callers_to_keep_and_to_change(table: Table) -> None:
    table.insert(rows(range(10)))
    first = table.sample(8, beta=0.0)
    kept = {name: array.copy() for name, array in first.columns.items()}
    for _ in range(20):
        table.sample(8, beta=0.0)
    for name, array in first.columns.items():
        np.testing.assert_array_equal(array, kept[name])
        array[:] = 0
    for array in (first.row_keys, first.probabilities, first.weights):
        array[:] = 0
    assert not first["obs"].any()


def test_arrays_outlive_their_batch(new_table: NewTable) -> None:
    table = new_table(columns={"image": Column("uint8", (64, 64))})
    table.insert({"image": np.full((4, 64, 64), 7, np.uint8)})
    images = [table.sample(4, beta=0.0)["image"][1:3] for _ in range(20)]
    assert all((image == 7).all() for image in images)


def test_columns_of_every_dtype(new_table: NewTable) -> None:
    names = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    dtypes = (*names, "float16", "float32", "float64")
    table = new_table(columns={f"{dtype}/{size}": Column(dtype, (size,)) for dtype in dtypes for size in (1, 3)})
    given = {
        name: np.arange(5 * column.shape[0]).reshape(5, -1).astype(column.dtype)
        for name, column in table.schema.items()
    }
    keys = table.insert(given)
    for got in (table.read(keys), table.sample(5, beta=0.0)):
        order = got.row_keys
        for name, column in table.schema.items():
            array = got[name]
            assert array.dtype == column.dtype
            assert array.flags.aligned
            assert array.flags.writeable
            np.testing.assert_array_equal(array, given[name][order])


def test_nested_observations_are_columns_of_their_own(new_table: NewTable) -> None:
    table = new_table(
        columns={"obs/camera": Column("uint8", (2, 2)), "obs/arm/0": Column("float32"), "obs/arm/1": Column("float32")}
    )
    observation = {"camera": np.ones((3, 2, 2), np.uint8), "arm": (np.zeros(3), np.ones(3))}
    keys = table.insert({"obs": observation})
    rows_read = table.read(keys)
    assert set(rows_read["obs"]) == {"camera", "arm"}
    assert rows_read["obs"]["arm"]["1"].tolist() == [1.0, 1.0, 1.0]
    again = table.read(table.insert({"obs": rows_read["obs"]}))
    np.testing.assert_array_equal(again["obs/arm/1"], rows_read["obs/arm/1"])


@pytest.mark.parametrize(
    ("keys", "priorities", "field"),
    [
        ([0], [np.nan], "priorities"),
        ([0], [np.inf], "priorities"),
        ([0], [-0.5], "priorities"),
        ([0, 1], [1.0], "priorities"),
        ([0], 1.0, "priorities"),
        ([0.5], [1.0], "keys"),
        ([[0]], [1.0], "keys"),
        (["a"], [1.0], "keys"),
        ([0], ["a"], "priorities"),
    ],
)
def test_a_wrong_update_is_refused_and_its_field_is_named(table: Table, keys: Any, priorities: Any, field: str) -> None:
    table.insert(rows([0, 1]), priorities=[3.0, 3.0])
    with pytest.raises(InvalidArgumentError) as refusal:
        table.update_priorities(keys, priorities)
    assert refusal.value.metadata["field"] == field
    assert table.read([0, 1]).priorities.tolist() == [3.0, 3.0]


def test_an_empty_table_has_nothing_to_draw(table: Table) -> None:
    with pytest.raises(TableEmptyError) as refusal:
        table.sample(1, beta=0.4)
    assert refusal.value.reason == "TABLE_EMPTY"
    with pytest.raises(DeadlineExceededError) as late:
        table.sample(1, beta=0.4, timeout_s=0.1)
    assert late.value.reason == "WAITED_TOO_LONG"
    assert isinstance(late.value, TimeoutError)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"beta": -1.0}, "beta"),
        ({"beta": float("nan")}, "beta"),
        ({"weight_norm": "max"}, "weight_norm"),
        ({"draw_mode": "random"}, "draw_mode"),
        ({"timeout_s": -1.0}, "timeout_s"),
    ],
)
def test_a_wrong_draw_is_refused_and_its_field_is_named(table: Table, options: dict[str, Any], field: str) -> None:
    table.insert(rows([1]))
    with pytest.raises(InvalidArgumentError) as refusal:
        table.sample(**{"batch_size": 4, "beta": 0.4, **options})
    assert field in refusal.value.metadata["field"]


def test_an_answer_too_large_is_refused(table: Table) -> None:
    table.insert(rows([1]))
    with pytest.raises(ResourceExhaustedError) as refusal:
        table.sample(1 << 30, beta=0.4)
    assert refusal.value.reason == "TOO_LARGE"
    assert refusal.value.metadata["limit"]


def test_reset_takes_the_rows_and_leaves_the_table(table: Table) -> None:
    table.insert(rows(range(5)))
    assert table.reset() == 5
    assert table.describe().size == 0
    assert table.insert(rows([1])).tolist() == [5]


def test_the_table_shows_what_it_is(table: Table) -> None:
    assert table.name in repr(table)
    assert "obs: float32[3]" in repr(table)


def test_more_keys_than_one_call_takes_go_in_several(new_table: NewTable) -> None:
    """A server refuses more than 32,768 keys; the client sends 8192 at a time."""
    table, count = new_table(capacity=40_000), 40_000
    table.insert(rows(np.arange(count)))
    keys = np.random.default_rng(0).permutation(count + 10)
    result = table.update_priorities(keys, keys + 0.5)
    assert (result.updated, result.stale) == (count, 10)
    live = keys[keys < count]
    read = table.read(keys)
    assert_whole(read)
    assert read.row_keys.tolist() == live.tolist()
    assert read.priorities.tolist() == (live + 0.5).tolist()
    with table.sampler(4, beta=0.4, prefetch=2) as sampler:
        next(sampler)
        sampler.update_priorities(keys, keys + 1.5)
        sampler.flush()
    assert (sampler.updated, sampler.stale) == (count, 10)
    assert table.read(live[:5]).priorities.tolist() == (live[:5] + 1.5).tolist()
