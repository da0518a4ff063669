"""Columns that rows may leave out, and their masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from replay_client import (
    Column,
    Discount,
    InvalidArgumentError,
    Next,
    ReplayClient,
    Sequences,
    Stack,
    Table,
    TableExistsError,
    Transitions,
)

from tests.support.caller import wire_only

ALL_DATA_PATHS = True

NewTable = Callable[..., Table]
COLUMNS = {
    "number": Column("int64"),
    "goal": Column("float32", 2, optional=True),
    "obs/camera": Column("uint8", (2, 2), optional=True),
    "obs/speed": Column("float16"),
    "hint": Column("int32", optional=True),
}
OPTIONAL = ("goal", "obs/camera", "hint")
MASKS = {name: f"{name}_present" for name in OPTIONAL}


def value_of(name: str, number: int) -> NDArray[Any]:
    return np.full(COLUMNS[name].shape, number + 1, COLUMNS[name].dtype)


def expected_rows(present: list[set[str]]) -> dict[str, NDArray[Any]]:
    """All columns of rows of which each has some of the optional columns."""
    expected: dict[str, NDArray[Any]] = {}
    for name in COLUMNS:
        has = [name not in OPTIONAL or name in names for names in present]
        values = [value_of(name, number) * is_there for number, is_there in enumerate(has)]
        expected[name] = np.stack(values).astype(COLUMNS[name].dtype)
        if name in OPTIONAL:
            expected[MASKS[name]] = np.array(has)
    return expected


def assert_rows(columns: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]], places: Any = ...) -> None:
    assert list(columns) == [name for name in expected if name in columns]
    for name, values in columns.items():
        np.testing.assert_array_equal(values, expected[name][places], err_msg=name, strict=True)


@pytest.fixture
def optional(new_table: NewTable) -> Table:
    """An empty table with optional columns."""
    return new_table(columns=COLUMNS, backend="uniform")


def test_an_insert_may_leave_out_a_column(optional: Table) -> None:
    whole = expected_rows([set(OPTIONAL)] * 3)
    keys = optional.insert({name: whole[name] for name in COLUMNS})
    assert_rows(optional.read(keys).columns, whole)
    some = expected_rows([{"hint"}] * 3)
    keys = optional.insert({"number": [1, 2, 3], "obs": {"speed": [1, 2, 3]}, "hint": [1, 2, 3], "goal": None})
    assert_rows(optional.read(keys).columns, some)


@pytest.mark.parametrize("goal", [None, {}, {"at": None, "more": None}, {"more": {"x": None}}])
def test_a_nested_observation_may_be_left_out(new_table: NewTable, goal: Any) -> None:
    parts = {"goal/at": Column("float32", 2, optional=True), "goal/more/x": Column("int64", optional=True)}
    table = new_table(columns={"number": Column("int64"), **parts}, backend="uniform")
    table.insert({"number": [1], "goal": goal})
    with table.writer() as writer:
        writer.append(number=2, goal=goal)
    found = table.read([0, 1])
    assert found["number"].tolist() == [1, 2]
    for mask in ("goal/at_present", "goal/more/x_present"):
        assert not found[mask].any()


def test_a_required_part_of_a_nested_observation_is_missing(optional: Table) -> None:
    with pytest.raises(InvalidArgumentError, match="missing: obs/speed"):
        optional.insert({"number": [1], "obs": None})


def test_a_mask_says_which_rows_of_an_insert_have_a_value(optional: Table) -> None:
    present = [{"goal"}, set[str](), {"goal", "hint"}, {"obs/camera"}]
    expected = expected_rows(present)
    goals = expected["goal"].copy()
    goals[[1, 3]] = np.nan  # of rows without a goal
    keys = optional.insert({**expected, "goal": goals, "hint_present": [0, 0, 1, 0]})
    assert_rows(optional.read(keys).columns, expected)


def test_a_batch_can_be_inserted_into_another_table(optional: Table, new_table: NewTable) -> None:
    expected = expected_rows([{"goal"}, {"hint"}])
    optional.insert(expected)
    copy = new_table(columns=optional.schema, backend="uniform")
    batch = optional.sample(8)
    assert_rows(batch.columns, expected, batch.row_keys)
    assert_rows(copy.read(copy.insert(batch)).columns, expected, batch.row_keys)


Rows = st.lists(st.sets(st.sampled_from(OPTIONAL)), min_size=1, max_size=20)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(present=Rows, streams=st.integers(1, 3), data=st.data())
def test_rows_of_writers_have_what_was_appended(
    optional: Table, present: list[set[str]], streams: int, data: st.DataObject
) -> None:
    optional.reset()
    expected = expected_rows(present)
    first = optional.describe().inserted
    with optional.writer(streams=streams) as writer:
        for number, names in enumerate(present):
            row: dict[str, Any] = {name: value_of(name, number) for name in COLUMNS if name not in OPTIONAL}
            row |= {name: value_of(name, number) for name in names}
            match data.draw(st.sampled_from(["flat", "nested", "none", "masks", "lists"])):
                case "nested":
                    row["obs"] = {name[4:]: row.pop(name) for name in list(row) if name.startswith("obs/")}
                case "none":
                    row |= {name: None for name in OPTIONAL if name not in names}
                case "masks":
                    row |= {mask: name in names for name, mask in MASKS.items()}
                    row |= {name: value_of(name, 5) for name in OPTIONAL if name not in names}
                case "lists":
                    row = {name: value.tolist() for name, value in row.items()}
            row["number"] = number + 1
            writer[number % streams].append(row)
    read = optional.read(np.arange(first, first + len(present)))
    assert_rows(read.columns, expected, read["number"] - 1)


def test_rows_for_all_streams_may_leave_out_a_column(optional: Table) -> None:
    expected = expected_rows([{"goal"}, set(), {"goal"}])
    with optional.writer(streams=3) as writer:
        writer.append_all({name: expected[name] for name in ("number", "obs/speed", "goal", "goal_present")})
        writer.append_all(number=[1, 2, 3], obs={"speed": [1, 2, 3]})
    read = optional.read(range(6))
    order = np.argsort(read.row_keys + 100 * (read["goal_present"].cumsum() == 0), kind="stable")
    assert sorted(read["number"][order].tolist()) == [1, 1, 2, 2, 3, 3]
    for number in (1, 2, 3):
        mine = read["number"] == number
        assert sorted(read["goal_present"][mine].tolist()) == [False, number != 2]
        assert read["goal"][mine].max() == (number if number != 2 else 0)


@pytest.mark.parametrize(
    ("change", "field", "expected", "got"),
    [
        ({"goal_present": [True, False]}, "columns.goal", "shape (2, 2), because goal_present is True", "none"),
        ({"goal_present": [2, 0]}, "columns.goal_present", "bool, or 0 and 1", "int64[2]"),
        ({"hint": [1.5, 2.5]}, "columns.hint", "int32, optional", "float64[2]"),
        ({"hint": [1, 2, 3]}, "columns.hint", "int32[2]", "int64[3]"),
        ({"number": None}, "columns.number", "int64", "object"),
        ({"goals": [1, 2]}, "columns", "number, goal", "unknown: goals"),
    ],
)
def test_a_wrong_value_is_refused_by_name(
    optional: Table, change: dict[str, Any], field: str, expected: str, got: str
) -> None:
    rows = {"number": [1, 2], "obs/speed": [1, 2], **change}
    with pytest.raises(InvalidArgumentError) as refused:
        optional.insert(rows)
    assert refused.value.metadata["field"] == field
    assert expected in refused.value.metadata["expected"]
    assert got in refused.value.metadata["got"]
    row = {name: value and value[0] for name, value in rows.items()}
    if got != "int64[3]":
        with optional.writer() as writer, pytest.raises(InvalidArgumentError) as refused:
            writer.append(row)
        assert refused.value.metadata["field"] == field
    assert optional.size() == 0


def test_a_chosen_column_comes_with_its_mask(optional: Table) -> None:
    expected = expected_rows([{"goal"}, {"hint", "obs/camera"}, set()])
    optional.insert(expected)
    batch = optional.sample(16, columns=["goal"])
    assert list(batch) == ["goal", "goal_present"]
    assert_rows(batch.columns, expected, batch.row_keys)
    assert list(optional.sample(1, columns=["obs"])) == ["obs/camera", "obs/camera_present", "obs/speed"]
    assert list(optional.sample(1, columns=["hint_present"])) == ["hint_present"]
    assert list(optional.read([0], columns=["hint"])) == ["hint", "hint_present"]
    with optional.sampler(4, columns=["hint"], device="cpu") as sampler:
        tensors = next(sampler)
        assert tensors["hint_present"].tolist() == (tensors["hint"] > 0).tolist()


STEPS: dict[str, Any] = {
    "goal": Column("float32", 2, optional=True),
    "reward": Column("float32"),
    "goals": Stack("goal", 3, "zero"),
    "goals_present": Stack("goal_present", 3, "zero"),
    "next_goal": Next("goal"),
    "discount": Discount(),
}


def test_columns_of_steps_may_be_optional(new_table: NewTable) -> None:
    table = new_table(columns=STEPS, steps=Transitions(1, 0.5), backend="uniform")
    present = [True, False, False, True, True]
    with table.writer() as writer:
        for step, has_goal in enumerate(present):
            writer.append(reward=step, goal=np.full(2, step + 1, np.float32) if has_goal else None)
        writer.end_episode(terminated=True)  # also without a goal
    batch = table.sample(64)
    assert set(batch) == {*STEPS, "goal_present"}
    steps = batch.row_keys
    values = np.where(present, np.arange(1, 6), 0)
    np.testing.assert_array_equal(batch["goal_present"], np.array(present)[steps])
    np.testing.assert_array_equal(batch["goal"][:, 0], values[steps])
    padded, has_goal = np.r_[0, 0, values, 0], np.r_[False, False, present, False]
    window = steps[:, None] + np.arange(3)
    np.testing.assert_array_equal(batch["goals"][:, :, 1], padded[window])
    np.testing.assert_array_equal(batch["goals_present"], has_goal[window])
    np.testing.assert_array_equal(batch["next_goal"][:, 0], padded[steps + 3])


def test_the_mask_of_a_sequence_s_start_is_drawn_once(new_table: NewTable) -> None:
    columns = {"x": Column("int64"), "state": Column("float32", 3, at="start", optional=True)}
    table = new_table(columns=columns, steps=Sequences(2, period=2), backend="uniform")
    with table.writer() as writer:
        for step in range(8):
            writer.append(x=step, state=np.ones(3, np.float32) if step % 4 == 0 else None)
    batch = table.sample(32)
    assert batch["state_present"].shape == (32,)
    np.testing.assert_array_equal(batch["state_present"], batch["x"][:, 0] % 4 == 0)
    np.testing.assert_array_equal(batch["state"][:, 0], batch["state_present"])


@wire_only
def test_a_table_with_an_optional_column_is_not_one_without(client: ReplayClient, optional: Table) -> None:
    assert not client.create_table(optional.name, columns=COLUMNS, capacity=1000, backend="uniform").created
    columns = {**optional.schema, "goal": Column("float32", 2)}
    with pytest.raises(TableExistsError) as refused:
        client.create_table(optional.name, columns=columns, capacity=1000, backend="uniform")
    assert refused.value.metadata["field"] == "columns.goal"
    columns = {"x": Column("int64", optional=True), "x_present": Column("int8")}
    with pytest.raises(InvalidArgumentError) as wrong:
        client.create_table("wrong", columns=columns, capacity=10)
    assert wrong.value.metadata["field"] == "columns.x_present"
    assert "choose another name" in wrong.value.metadata["expected"]
