"""Mutable columns: written again by key, alone or on a sampler's stream, as docs/how-to/client.md describes it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replay_client import (
    Batch,
    Column,
    InvalidArgumentError,
    ReplayClient,
    Return,
    Sequences,
    Stack,
    Table,
    TableExistsError,
    TableReplacedError,
    Transitions,
)
from replay_client._rows.mapped_rows import MappedRows
from replay_proto.schema import Schema

ALL_DATA_PATHS = True

NewTable = Callable[..., Table]
COLUMNS = {
    "key": Column("int64"),
    "value": Column("float32", mutable=True),
    "policy": Column("float16", (2, 3), mutable=True),
}
CAPACITY = 20


def filled(new_table: NewTable, rows: int = 30, **options: Any) -> Table:
    """A table whose rows say their key, with the value 0."""
    table = new_table(**{"columns": COLUMNS, "capacity": CAPACITY, **options})
    for first in range(0, rows, 10):
        table.insert({"key": np.arange(first, first + 10), "value": np.zeros(10), "policy": np.zeros((10, 2, 3))})
    return table


def policies(numbers: Any) -> np.ndarray[Any, Any]:
    return np.asarray(numbers)[:, None, None] * np.ones((2, 3))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_row_has_the_values_that_were_written_last(new_table: NewTable, data: st.DataObject) -> None:
    """An oracle with a dict per column, from random inserts and updates."""
    table = new_table(columns=COLUMNS, capacity=CAPACITY)
    expected: dict[str, dict[int, float]] = {"value": {}, "policy": {}}
    number = inserted = 0
    with table.sampler(8, prefetch=2, timeout_s=0) as sampler:
        for _ in range(data.draw(st.integers(1, 8), "operations")):
            if not inserted or data.draw(st.booleans(), "insert"):
                count = data.draw(st.integers(1, 12), "rows")
                keys = np.arange(inserted, inserted + count)
                table.insert({"key": keys, "value": keys, "policy": policies(keys % 1000)})
                for key in keys.tolist():
                    expected["value"][key], expected["policy"][key] = key, key % 1000
                inserted += count
            else:
                given_keys = data.draw(st.lists(st.integers(-3, inserted + 3), min_size=1, max_size=30), "keys")
                names = data.draw(st.sampled_from([["value"], ["policy"], ["value", "policy"]]), "columns")
                numbers = 1000 + np.arange(number, number + len(given_keys)) % 900
                number += len(given_keys)
                values = {name: policies(numbers) if name == "policy" else numbers for name in names}
                live = range(max(0, inserted - CAPACITY), inserted)
                updated = len({key for key in given_keys if key in live})
                stale = sum(key not in live and key != -1 for key in given_keys)
                if data.draw(st.booleans(), "on the stream"):
                    before = sampler.updated, sampler.stale
                    sampler.update(np.array(given_keys), values)
                    sampler.flush()
                    assert (sampler.updated - before[0], sampler.stale - before[1]) == (updated, stale)
                else:
                    result = table.update(np.array(given_keys), values)
                    assert (result.updated, result.stale) == (updated, stale)
                for key, each in zip(given_keys, numbers.tolist(), strict=True):
                    for name in names:
                        expected[name][key] = each
            batch = table.sample(16)
            rows = table.read(np.arange(inserted))
            for found in (batch, rows):
                keys = found.row_keys
                np.testing.assert_array_equal(found["key"], keys)
                np.testing.assert_array_equal(found["value"], [expected["value"][key] for key in keys.tolist()])
                due = policies([expected["policy"][key] for key in keys.tolist()])
                np.testing.assert_array_equal(found["policy"], due)


def test_a_batch_asked_for_later_has_the_new_values(new_table: NewTable) -> None:
    table = filled(new_table)
    with table.sampler(16, prefetch=2) as sampler:
        batch = next(sampler)
        sampler.update(np.arange(10, 30), {"value": np.full(20, 7.0)})
        for _ in range(2):
            next(sampler)  # was asked for earlier
        assert (next(sampler)["value"] == 7.0).all()
        assert (batch["value"] == 0.0).all()


def test_a_sampler_with_a_device_takes_tensors(new_table: NewTable) -> None:
    table = filled(new_table)
    with table.sampler(16, device="cpu") as sampler:
        batch = next(sampler)
        assert isinstance(batch["value"], torch.Tensor)
        values = torch.ones(16, requires_grad=True) * 3
        sampler.update(batch.position_keys, {"value": values})
        sampler.flush()
        assert sampler.updated == len(set(batch.row_keys.tolist()))
    assert (table.read(batch.row_keys)["value"] == 3.0).all()


def test_nested_and_optional_columns(new_table: NewTable) -> None:
    columns = {
        "obs/latent": Column("float32", 2, mutable=True),
        "obs/camera": Column("uint8", 3),
        "goal": Column("int32", mutable=True, optional=True),
    }
    table = new_table(columns=columns)
    keys = table.insert({"obs": {"latent": np.zeros((3, 2)), "camera": np.zeros((3, 3), np.uint8)}})
    table.update(keys[:2], {"obs": {"latent": np.ones((2, 2))}, "goal": [5, 6]})
    found = table.read(keys)
    assert found["obs"]["latent"].tolist() == [[1, 1], [1, 1], [0, 0]]
    assert (found["goal"].tolist(), found["goal_present"].tolist()) == ([5, 6, 0], [True, True, False])
    table.update(keys[:1], {"goal": [9], "goal_present": [False]})
    found = table.read(keys)
    assert (found["goal"].tolist(), found["goal_present"].tolist()) == ([0, 6, 0], [False, True, False])


def of_steps(new_table: NewTable, steps: Transitions | Sequences, episodes: Mapping[int, bool]) -> tuple[Table, Any]:
    """A table with episodes of these lengths, each closed or not; and the keys of each episode's rows.

    The observations are the keys.
    """
    columns = {
        "obs": Column("int64", sampled=not isinstance(steps, Transitions)),
        "state": Column("float32", mutable=True),
    }
    if isinstance(steps, Transitions):
        columns |= {"stack": Stack("obs", 3)}  # type: ignore[dict-item]
    table = new_table(columns=columns, steps=steps)
    keys, next_key = [], 0
    with table.writer() as writer:
        for length, is_closed in episodes.items():
            rows = length + is_closed
            keys.append(list(range(next_key, next_key + rows)))
            for key in keys[-1][:length]:
                writer.append(obs=key, state=0.0)
            if is_closed:
                writer.end_episode(obs=keys[-1][-1], state=0.0)
            next_key += rows
            writer.flush()
    return table, keys


def due_keys(episodes: list[list[int]], anchor: int, first: int, stop: int) -> list[int]:
    """The keys of the rows from ``first`` to ``stop`` around an anchor, -1 outside of its episode."""
    episode = next(each for each in episodes if anchor in each)
    place = episode.index(anchor)
    return [episode[place + step] if 0 <= place + step < len(episode) else -1 for step in range(first, stop)]


@pytest.mark.parametrize(
    ("steps", "first", "stop"),
    [
        (Sequences(length=4, burn_in=2, period=1), -2, 4),
        (Sequences(length=5, period=5), 0, 5),
        (Transitions(n_step=1), 0, 2),
        (Transitions(n_step=3), 0, 4),
    ],
)
def test_position_keys_name_every_row_of_an_item(
    new_table: NewTable, steps: Transitions | Sequences, first: int, stop: int
) -> None:
    table, episodes = of_steps(new_table, steps, {1: True, 7: True, 9: True, 6: True})
    batch = table.sample(64)
    found = batch.position_keys
    assert found.tolist() == [due_keys(episodes, anchor, first, stop) for anchor in batch.row_keys.tolist()]
    parts = np.concatenate([part.position_keys for part in batch.split(4)])
    np.testing.assert_array_equal(parts, found)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(batch)).position_keys, found)
    if isinstance(steps, Sequences):
        np.testing.assert_array_equal(np.where(found == -1, 0, found), batch["obs"])
    result = table.update(found, {"state": np.where(found == -1, np.nan, found)})
    assert (result.updated, result.stale) == (len(set(found[found != -1].tolist())), 0)
    again = table.sample(64)
    known = np.isin(again.position_keys, found[found != -1])
    if isinstance(steps, Sequences):
        np.testing.assert_array_equal(again["state"], np.where(known, again.position_keys, 0))
    else:
        np.testing.assert_array_equal(again["state"], np.where(known[:, 0], again.row_keys, 0))


def test_a_plain_batch_has_the_keys_of_its_rows(new_table: NewTable, client: ReplayClient) -> None:
    table, other = filled(new_table), filled(new_table)
    batch = table.sample(8)
    np.testing.assert_array_equal(batch.position_keys, batch.row_keys)
    with client.mixed_sampler({table.name: 4, other.name: 4}) as sampler:
        mixed = next(sampler)
        with pytest.raises(InvalidArgumentError, match="position_keys: expected a batch of one table"):
            mixed.position_keys  # noqa: B018
        for part in mixed.parts.values():
            np.testing.assert_array_equal(part.position_keys, part.row_keys)


@pytest.mark.parametrize(
    ("keys", "columns", "message"),
    [
        ([25], {"key": [1]}, r"columns.key: expected a mutable column \(value, policy\), got key, int64"),
        ([25], {"color": [1]}, "columns: expected key, value, policy, got unknown: color"),
        ([25, 26], {"value": [1.0]}, r"columns.value: expected float32\[2\], like the keys, got float64\[1\]"),
        ([[25, 26]], {"policy": np.zeros((2, 2, 3))}, r"columns.policy: expected float16\[1,2,2,3\], like the keys"),
        ([25], {"value": ["a"]}, "columns.value: expected float32, mutable, got str"),
        ([25], {"policy": np.full((1, 2, 3), 1e9)}, "columns.policy: expected float16, -65504 to 65504"),
        ([25], {}, "columns: expected at least one column, got none"),
        ([25.5], {"value": [1.0]}, "keys: expected int64, got float64"),
        (["x"], {"value": [1.0]}, "keys: expected int64"),
    ],
)
def test_what_cannot_be_written_is_named_and_changes_nothing(
    new_table: NewTable, keys: Any, columns: Any, message: str
) -> None:
    table = filled(new_table)
    with table.sampler(4) as sampler:
        for update in (table.update, sampler.update):
            with pytest.raises(InvalidArgumentError, match=message):
                update(keys, columns)
        assert sampler.unacknowledged == 0
    assert (table.read([25, 26])["value"] == 0).all()


def test_derived_columns_and_tables_without_mutable_ones_are_refused(new_table: NewTable) -> None:
    columns = {"reward": Column("float32"), "sum": Return("reward")}
    table = new_table(columns=columns, steps=Transitions(n_step=2))
    with pytest.raises(InvalidArgumentError, match="columns: expected reward, got unknown: sum"):
        table.update([0], {"sum": [1.0]})
    with pytest.raises(InvalidArgumentError, match=r"expected a mutable column \(none in this table\), got reward"):
        table.update([0], {"reward": [1.0]})


def test_keys_of_a_table_that_was_replaced_are_refused(new_table: NewTable, client: ReplayClient) -> None:
    table = filled(new_table)
    table.drop()
    new = client.create_table(table.name, columns=COLUMNS, capacity=CAPACITY)
    new.insert({"key": [0], "value": [0.0], "policy": np.zeros((1, 2, 3))})
    with pytest.raises(TableReplacedError):
        table.update([0], {"value": [1.0]})
    assert new.read([0])["value"].tolist() == [0.0]


def test_a_table_is_opened_only_with_the_same_mutable_columns(new_table: NewTable, client: ReplayClient) -> None:
    table = filled(new_table)
    columns = {**COLUMNS, "value": Column("float32")}
    with pytest.raises(TableExistsError, match=r"columns\.value is float32, mutable, asked for float32"):
        client.create_table(table.name, columns=columns, capacity=CAPACITY, if_exists="open")


def test_an_update_of_many_rows_is_split(new_table: NewTable) -> None:
    columns = {"image": Column("uint8", (1 << 16), mutable=True)}
    table = new_table(columns=columns, capacity=200)
    keys = table.insert({"image": np.zeros((200, 1 << 16), np.uint8)})
    result = table.update(keys, {"image": np.repeat(np.arange(200, dtype=np.uint8)[:, None], 1 << 16, axis=1)})
    assert (result.updated, result.stale) == (200, 0)
    batch: Batch = table.sample(100)
    assert (batch["image"] == batch.row_keys[:, None]).all()


def test_a_client_that_does_not_know_of_versions_finds_no_files(new_table: NewTable) -> None:
    """It would copy values from the wrong places; without the files, it asks for rows in replies."""
    described = filled(new_table).describe()
    MappedRows(described)
    plain = Schema({name: Column(column.dtype, column.shape) for name, column in described.schema.items()})
    with pytest.raises(FileNotFoundError):
        MappedRows(replace(described, schema=plain))
