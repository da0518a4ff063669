"""Copies of tables: rows that are read and inserted again, with their episodes and priorities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from replay_client import Column, InvalidArgumentError, LimitedError, Rows, Sequences, Stack, Table, Transitions
from replay_client._learning.answers import joined_rows, selected_rows

from tests.client import numbered
from tests.client.steps.copies import assert_same_table, expected_drawable, write_episodes
from tests.client.steps.numbered_episodes import COLUMNS

NewTable = Callable[..., Table]
SHORT = {"x": Column("int64"), "reward": Column("float32")}
STEPS: dict[str, dict[str, Any]] = {
    "transitions": {"columns": COLUMNS, "steps": Transitions(3)},
    "sequences": {
        "columns": {**SHORT, "stack": Stack("x", 2)},
        "steps": Sequences(length=3, burn_in=2, period=2),
    },
    "single steps": {"columns": SHORT, "steps": Sequences(length=1)},
}


def copied(source: Table, target: Table, chunk: int = 10_000, **options: Any) -> None:
    loader, reader = target.loader(**options), source.rows(chunk=chunk)
    for part in reader:
        loader.insert(part)
    assert (loader.inserted, loader.is_contiguous) == (reader.total, True)


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("chunk", [5, 40, 10_000])
def test_a_copy_draws_the_same_windows_with_the_same_probabilities(new_table: NewTable, kind: str, chunk: int) -> None:
    source, target = new_table(**STEPS[kind]), new_table(**STEPS[kind])
    write_episodes(source, streams=4, rows=300)
    copied(source, target, chunk)
    assert_same_table(source, target)


@pytest.mark.parametrize("kind", STEPS)
def test_an_episode_whose_first_steps_were_evicted_is_broken_in_the_copy_too(new_table: NewTable, kind: str) -> None:
    source, target = new_table(capacity=130, **STEPS[kind]), new_table(**STEPS[kind])
    write_episodes(source, streams=3, rows=300)
    copied(source, target, chunk=33)
    assert_same_table(source, target)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", STEPS)
def test_missing_rows_break_the_windows_that_need_them(new_table: NewTable, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    source, target = new_table(**STEPS[kind]), new_table(**STEPS[kind])
    write_episodes(source, streams=3, rows=200)
    every = joined_rows(list(source.rows()))
    kept = selected_rows(every, np.flatnonzero(rng.random(200) > 0.1))
    loader = target.loader()
    for places in np.array_split(np.arange(kept.batch_size), 5):
        loader.insert(selected_rows(kept, places))
    read = joined_rows(list(target.rows()))
    assert source.steps is not None
    assert set(np.flatnonzero(~np.isnan(read.priorities)).tolist()) == expected_drawable(kept, source.steps.window)
    is_known = ~np.isnan(read.priorities) & ~np.isnan(kept.priorities)
    np.testing.assert_array_equal(read.priorities[is_known], kept.priorities[is_known])


def test_streams_that_keep_their_numbers_get_the_same_new_ones_after_missing_rows(new_table: NewTable) -> None:
    source, *targets = (new_table(**STEPS["transitions"]) for _ in range(3))
    write_episodes(source, streams=3, rows=200)
    every = joined_rows(list(source.rows()))
    kept = selected_rows(every, np.flatnonzero(np.arange(200) % 40 > 5))
    for target, parts in zip(targets, (1, 5), strict=True):
        loader = target._copy_loader(lambda table: table._insert_checked)
        for places in np.array_split(np.arange(kept.batch_size), parts):
            loader.insert(selected_rows(kept, places))
    one, other = (joined_rows(list(target.rows())) for target in targets)
    np.testing.assert_array_equal(one.streams, other.streams)
    assert len(set(one.streams.tolist())) > 3
    assert set(every.streams.tolist()) <= set(one.streams.tolist())
    assert source.steps is not None
    assert set(np.flatnonzero(~np.isnan(one.priorities)).tolist()) == expected_drawable(kept, source.steps.window)


def test_rows_in_the_order_of_episodes_are_a_copy_too(new_table: NewTable) -> None:
    source, target = new_table(**STEPS["transitions"]), new_table(**STEPS["transitions"])
    write_episodes(source, streams=4, rows=200)
    loader = target.loader()
    for part in source.rows(order="episode", chunk=30):
        loader.insert(part)
    assert target.stats().steps == source.stats().steps
    by_value = dict(priorities_by_x(source))
    for x, priority in priorities_by_x(target):
        np.testing.assert_equal(priority, by_value[x])


def priorities_by_x(table: Table) -> list[tuple[int, float]]:
    rows = joined_rows(list(table.rows()))
    return list(zip(rows["x"].tolist(), rows.priorities.tolist(), strict=True))


def test_a_mapping_of_columns_is_refused(table: Table) -> None:
    loader: Any = table.loader()
    with pytest.raises(InvalidArgumentError, match=r"rows: expected Rows.* use Table\.insert, got a dict"):
        loader.insert({"number": np.arange(3)})


def test_a_table_can_be_loaded_twice_and_into_itself(new_table: NewTable) -> None:
    source, target = new_table(**STEPS["transitions"]), new_table(**STEPS["transitions"])
    write_episodes(source, streams=2, rows=60)
    for each in (target, target, source):
        copied(source, each)
    drawable = target.stats().steps
    assert source.stats().steps == drawable
    assert len(set(target.read(np.arange(120)).streams.tolist())) == 4


def test_a_loader_notices_other_inserts(table: Table, new_table: NewTable) -> None:
    source = new_table()
    source.insert(numbered.rows(range(20)))
    loader = table.loader()
    for part in source.rows(chunk=10):
        assert loader.is_contiguous
        loader.insert(part)
        table.insert(numbered.rows([1]))
    assert not loader.is_contiguous


def test_without_priorities_every_row_gets_the_largest(new_table: NewTable) -> None:
    for config in ({}, STEPS["transitions"]):
        source, target = new_table(**config), new_table(**config)
        if config:
            write_episodes(source, streams=2, rows=60)
        else:
            source.insert(numbered.rows(range(60)), priorities=np.linspace(0.1, 2, 60))
        copied(source, target, priorities=False)
        priorities = target.read(np.arange(60)).priorities
        assert set(priorities[~np.isnan(priorities)].tolist()) == {1.0}


def test_a_drawable_row_without_a_known_priority_gets_the_largest_known_one(new_table: NewTable) -> None:
    source, target = new_table(**STEPS["transitions"]), new_table(**STEPS["transitions"])
    write_episodes(source, streams=1, rows=60)
    rows = source.read(range(60))
    drawable = np.flatnonzero(~np.isnan(rows.priorities))
    unknown = drawable[[5, 20]]
    rows.priorities[unknown] = np.nan
    loader = target.loader()
    loader.insert(selected_rows(rows, np.arange(40)))
    loader.insert(selected_rows(rows, np.arange(40, 60)))
    expected = rows.priorities.copy()
    expected[unknown] = np.nanmax(rows.priorities[drawable[drawable < 40][:-3]])
    np.testing.assert_array_equal(target.read(range(60)).priorities, expected)


def test_plain_rows_keep_their_priorities_streams_and_episodes(new_table: NewTable) -> None:
    source, target = new_table(), new_table()
    with source.writer(streams=2, block_rows=8) as writer:
        for number in range(40):
            writer[number % 2].append(numbered.row(number), priority=number / 8)
            if number % 7 == 0:
                writer[number % 2].end_episode()
    source.insert(numbered.rows(range(40, 50)))
    copied(source, target, chunk=17)
    read, copy = joined_rows(list(source.rows())), joined_rows(list(target.rows()))
    for name in ("row_keys", "priorities", "streams", "episodes"):
        np.testing.assert_array_equal(getattr(copy, name), getattr(read, name))
    numbered.assert_whole(copy)


def test_rows_that_do_not_fit_the_table_are_refused_before_any_is_stored(new_table: NewTable) -> None:
    plain, other, steps = new_table(), new_table(columns={"number": Column("int64")}), new_table(**STEPS["transitions"])
    plain.insert(numbered.rows(range(3)))
    write_episodes(steps, streams=1, rows=5)
    rows, step_rows = plain.read(range(3)), steps.read(range(5))
    for target, given, message in [
        (other, rows, r"columns: expected number, got unknown: obs, done"),
        (steps, rows, r"steps: expected rows with steps, as in the table, got none"),
        (plain, step_rows, r"steps: expected rows without steps, as in the table, got rows with steps"),
        (plain, replaced(rows, priorities=np.array([1, np.nan, 2])), r"priorities: expected finite numbers .* got nan"),
        (steps, replaced(step_rows, steps=np.arange(5) - 1), r"steps: expected 0 to 281474976710655, got -1 to 3"),
        (steps, replaced(step_rows, priorities=np.full(5, -1.0)), r"priorities: expected finite numbers .* got -1"),
    ]:
        with pytest.raises(InvalidArgumentError, match=message):
            target.loader().insert(given)
    assert (len(plain), len(other), len(steps)) == (3, 0, 5)


def replaced(rows: Rows, **fields: Any) -> Rows:
    return Rows(**{**vars(rows), **fields})


def test_an_error_says_how_many_rows_were_inserted(new_table: NewTable) -> None:
    source = new_table(capacity=300)
    source.insert(numbered.rows(range(300)))
    queue = new_table(backend="fifo", capacity=100)
    loader = queue.loader(timeout_s=0)
    with pytest.raises(LimitedError) as raised:
        loader.insert(source.read(range(300)))
    assert raised.value.__notes__ == ["64 rows were inserted before this error"]
    assert (loader.inserted, loader.first_key, len(queue)) == (64, 0, 64)
