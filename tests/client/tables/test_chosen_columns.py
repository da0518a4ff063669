"""Draws and reads of some columns."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_client import (
    Column,
    Discount,
    InvalidArgumentError,
    Mask,
    ReplayClient,
    Return,
    Sequences,
    Stack,
    Table,
    Transitions,
)
from replay_client.torch import TableDataset
from replay_proto.framing import split_message
from torch.utils.data import DataLoader

from tests.client.numbered import rows
from tests.client.steps.oracle import Columns
from tests.client.steps.test_steps_tables import SEQUENCES, TRANSITIONS, written
from tests.support.caller import wire_only
from tests.support.server_process import ServerProcess

ALL_DATA_PATHS = True

NewTable = Callable[..., Table]
NESTED = {"obs/camera": Column("uint8", (2, 2)), "obs/speed": Column("float32"), "action": Column("int64")}


@pytest.fixture
def full(table: Table) -> Table:
    """A table with rows."""
    table.insert(rows(range(100)))
    return table


def assert_chosen(columns: Any, keys: NDArray[np.int64], *names: str) -> None:
    """Assert that these columns, and no others, have the values of the rows with these keys."""
    assert list(columns) == list(names)
    expected = rows(keys)
    for name in names:
        np.testing.assert_array_equal(columns[name], expected[name])


def test_a_draw_has_the_chosen_columns_in_the_order_of_the_schema(full: Table) -> None:
    batch = full.sample(16, beta=0.4, columns=["done", "number"])
    assert_chosen(batch, batch.row_keys, "number", "done")
    assert batch.weights.shape == (16,)
    batch = full.sample(16, beta=0.4, columns={"obs"})
    assert_chosen(batch, batch.row_keys, "obs")


def test_a_draw_of_no_columns_has_keys_and_weights(full: Table) -> None:
    batch = full.sample(16, beta=0.4, columns=[])
    assert (len(batch), batch.batch_size) == (0, 16)
    assert (batch.probabilities > 0).all()


@pytest.mark.parametrize("prefetch", [1, 3, 16])
def test_a_sampler_draws_the_chosen_columns(full: Table, prefetch: int) -> None:
    with full.sampler(8, beta=0.4, prefetch=prefetch, columns=["obs"]) as sampler:
        for batch in islice(sampler, 20):
            assert_chosen(batch, batch.row_keys, "obs")
            sampler.update_priorities(batch, np.ones(8))
    with full.sampler(8, beta=0.4, columns=["number"], device="cpu") as tensors:
        moved = next(tensors)
        assert_chosen(moved, moved.row_keys, "number")
    (loaded,) = islice(DataLoader(TableDataset(full, 8, beta=0.4, columns=["done"]), batch_size=None), 1)
    assert_chosen(loaded, loaded.row_keys, "done")


def test_reads_have_the_chosen_columns(full: Table) -> None:
    read = full.read([5, 3, 4], columns=["obs", "done"])
    assert_chosen(read, np.array([5, 3, 4]), "obs", "done")
    assert list(full.read([5], columns=[])) == []
    parts = list(full.rows(chunk=30, columns=["number"]))
    assert [part.batch_size for part in parts] == [30, 30, 30, 10]
    assert_chosen(parts[3], np.arange(90, 100), "number")


def test_the_name_of_a_nested_observation_chooses_its_parts(new_table: NewTable) -> None:
    table = new_table(columns=NESTED)
    table.insert({"obs": {"camera": np.ones((3, 2, 2), np.uint8), "speed": [1.0, 2.0, 3.0]}, "action": [4, 5, 6]})
    batch = table.sample(4, beta=0.4, columns=["obs"])
    assert list(batch) == ["obs/camera", "obs/speed"]
    assert batch["obs"]["speed"].tolist() == [1.0 + key for key in batch.row_keys]
    assert list(table.sample(4, beta=0.4, columns=["obs/speed", "action"])) == ["obs/speed", "action"]


@pytest.mark.parametrize(
    ("given", "expected", "got"),
    [
        (["obs", "obz"], "names among number, obs, done", "'obz'"),
        (["ob"], "names among number, obs, done", "'ob'"),
        ([3], "names among number, obs, done", "3"),
        ("obs", "a list of names, or None for all columns", "'obs'"),
        (7, "a list of names, or None for all columns", "7"),
    ],
)
def test_a_wrong_choice_is_refused_before_anything_is_drawn(full: Table, given: Any, expected: str, got: str) -> None:
    for call in (
        lambda: full.sample(4, beta=0.4, columns=given),
        lambda: full.sampler(4, beta=0.4, columns=given),
        lambda: full.read([1], columns=given),
        lambda: full.rows(columns=given),
        lambda: next(iter(TableDataset(full, 4, beta=0.4, columns=given))),
    ):
        with pytest.raises(InvalidArgumentError) as refused:
            call()
        assert refused.value.metadata == {"field": "columns", "expected": expected, "got": got}
    assert full.stats().sampled == 0


@pytest.mark.parametrize(
    ("columns", "item", "chosen"),
    [
        (TRANSITIONS, Transitions(3, 0.9), ["obs", "discount"]),
        (TRANSITIONS, Transitions(3, 0.9), ["n_return"]),
        (TRANSITIONS, Transitions(1), ["next_action", "action"]),
        (TRANSITIONS, Transitions(2), ["discount"]),
        (SEQUENCES, Sequences(4, burn_in=3, period=2, gamma=0.9), ["stacked"]),
        (SEQUENCES, Sequences(4, burn_in=3, period=2, gamma=0.9), ["state", "reward"]),
        (SEQUENCES, Sequences(4, period=4), []),
    ],
)
def test_items_of_a_table_of_steps_have_the_same_values_with_and_without_the_other_columns(
    new_table: NewTable, columns: Columns, item: Any, chosen: list[str]
) -> None:
    table = new_table(columns=columns, steps=item, backend="uniform", capacity=500)
    written(table, columns)
    whole = table.sample(1000)
    place = {key: index for index, key in enumerate(whole.row_keys.tolist())}
    with table.sampler(64, columns=chosen) as sampler:
        for batch in (table.sample(64, columns=chosen), next(sampler)):
            masks = ["mask"] if isinstance(item, Sequences) else []
            assert set(batch) == {*chosen, *masks}
            same = [place[key] for key in batch.row_keys.tolist()]
            for name, values in batch.items():
                np.testing.assert_array_equal(values, whole[name][same], err_msg=name, strict=True)


def test_a_read_of_steps_chooses_among_stored_columns(new_table: NewTable) -> None:
    table = new_table(columns=TRANSITIONS, steps=Transitions(1), backend="uniform", capacity=500)
    written(table, TRANSITIONS)
    whole, some = table.read(range(20)), table.read(range(20), columns=["reward", "frame"])
    assert list(some) == ["frame", "reward"]
    for name, values in some.items():
        np.testing.assert_array_equal(values, whole[name])
    with pytest.raises(InvalidArgumentError, match=r"frame, action, reward.*'obs'"):
        table.read([1], columns=["obs"])


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the replies with rows."""
    lengths: list[int] = []

    def counted(kind: Any, data: Any) -> Any:
        lengths.append(len(data))
        return split_message(kind, data)

    monkeypatch.setattr("replay_client._learning.answers.split_message", counted)
    return lengths


@wire_only
def test_only_the_chosen_columns_travel(new_table: NewTable, received: list[int]) -> None:
    columns = {f"part{number}": Column("uint8", 1000) for number in range(8)}
    table = new_table(columns=columns, backend="uniform")
    table.insert({name: np.full((10, 1000), number, np.uint8) for number, name in enumerate(columns)})
    chosen = ["part3"]
    table.sample(10)
    table.sample(10, columns=chosen)
    table.read(range(10), columns=chosen)
    with table.sampler(10, prefetch=1, columns=chosen) as sampler:
        assert (next(sampler)["part3"] == 3).all()
    whole, *some = received
    assert 80_000 < whole < 81_000
    assert all(10_000 < size < 11_000 for size in some)
    assert len(some) == 3


@wire_only
def test_of_steps_only_the_sources_of_the_chosen_columns_travel(new_table: NewTable, received: list[int]) -> None:
    columns: Columns = {
        "frame": Column("uint8", 1000, sampled=False),
        "reward": Column("float32", sampled=False),
        "obs": Stack("frame", 4),
        "n_return": Return("reward"),
        "discount": Discount(),
    }
    table = new_table(columns=columns, steps=Transitions(1), backend="uniform")
    with table.writer() as writer:
        for number in range(20):
            writer.append(frame=np.zeros(1000, np.uint8), reward=number)
    table.sample(16)
    table.sample(16, columns=["n_return"])
    whole, some = received
    assert whole > 16 * 2 * 1000
    assert some < 16 * 100


@wire_only
def test_a_batch_that_was_overtaken_is_replaced_with_the_chosen_columns(
    client: ReplayClient, server: ServerProcess, new_table: NewTable
) -> None:
    """The client cannot copy the rows in time, and receives them instead."""
    with ReplayClient(server.address) as near:
        table = near.table(new_table(backend="uniform").name)
        table.insert(rows(range(100)))
        table._data_path.renew()
        mapped = table._data_path.near.mapped
        assert mapped is not None
        mapped.gather = lambda keys, columns: False  # type: ignore[method-assign]
        batch = table.sample(8, columns=["obs"])
        assert_chosen(batch, batch.row_keys, "obs")
        with table.sampler(8, columns=["obs"]) as sampler:
            batch = next(sampler)
            assert_chosen(batch, batch.row_keys, "obs")
        assert table.stats().overtaken >= 2


def test_a_mask_is_always_drawn(new_table: NewTable) -> None:
    columns: Columns = {"x": Column("int64"), "held": Mask()}
    table = new_table(columns=columns, steps=Sequences(4, period=4), backend="uniform")
    with table.writer() as writer:
        for number in range(6):
            writer.append(x=number)
        writer.end_episode(x=6, terminated=True)
    batch = table.sample(8, columns=[])
    assert list(batch) == ["held"]
    assert {tuple(mask) for mask in batch["held"].tolist()} == {(True,) * 4, (True, True, False, False)}
