"""Tables of steps that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from replay_client import (
    Column,
    Discount,
    InvalidArgumentError,
    Mask,
    Next,
    ReplayClient,
    Return,
    Sequences,
    Stack,
    Table,
    Transitions,
)
from replay_proto.steps import Item

ALL_DATA_PATHS = True

NewTable = Callable[..., Table]


FRAME, REWARD = Column("uint8", 4), Column("float32")


@pytest.mark.parametrize(
    ("columns", "steps", "field"),
    [
        ({"x": FRAME, "stack": Stack("x", 2)}, None, "columns.stack"),
        ({"x": FRAME, "discount": Discount()}, None, "columns.discount"),
        ({"x": Column("uint8", sampled=False)}, None, "columns.x.sampled"),
        ({"x": Column("uint8", at="start")}, None, "columns.x.at"),
        ({"x": FRAME, "stack": Stack("y", 2)}, Transitions(), "columns.stack.of"),
        ({"x": FRAME, "a": Stack("x", 2), "b": Stack("a", 2)}, Transitions(), "columns.b.of"),
        ({"x": FRAME, "stack": Stack("x", 0)}, Transitions(), "columns.stack.count"),
        ({"x": FRAME, "stack": Stack("x", 2, "edge")}, Transitions(), "columns.stack.padding"),  # type: ignore[arg-type]
        ({"x": FRAME, "total": Return("x")}, Transitions(), "columns.total.of"),
        ({"x": FRAME, "mask": Mask()}, Transitions(), "columns.mask"),
        ({"x": REWARD, "total": Return("x")}, Sequences(2), "columns.total"),
        ({"x": FRAME, "next": Next("x")}, Sequences(2), "columns.next.ahead"),
        ({"x": Column("uint8", at="start")}, Transitions(), "columns.x.at"),
        ({"x": FRAME}, "transitions", "steps"),
        ({"x": Column("uint8", sampled=False)}, Transitions(), "columns"),
    ],
)
def test_options_that_exclude_each_other_are_refused_by_name(columns: Any, steps: Any, field: str) -> None:
    with ReplayClient("localhost:1") as client, pytest.raises(InvalidArgumentError) as refused:
        client.create_table("t", columns=columns, capacity=10, steps=steps)
    assert refused.value.metadata["field"] == field


WRONG_NUMBERS: list[tuple[type[Any], dict[str, Any], str]] = [
    (Transitions, {"n_step": 0}, "steps.n_step"),
    (Transitions, {"n_step": (1, 3)}, "steps.n_step"),
    (Transitions, {"n_step": True}, "steps.n_step"),
    (Transitions, {"gamma": 1.5}, "steps.gamma"),
    (Transitions, {"gamma": "x"}, "steps.gamma"),
    (Sequences, {"length": 0}, "steps.length"),
    (Sequences, {"length": 5000}, "steps.length"),
    (Sequences, {"length": 2, "burn_in": -1}, "steps.burn_in"),
    (Sequences, {"length": 2, "period": 3}, "steps.period"),
]


@pytest.mark.parametrize(("item", "numbers", "field"), WRONG_NUMBERS, ids=str)
def test_items_with_wrong_numbers_cannot_be_made(item: type[Any], numbers: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        item(**numbers)
    assert refused.value.metadata["field"] == field


@pytest.mark.parametrize(
    ("steps", "episode", "most"),
    [(Transitions(5), 200, 99), (Sequences(1), 200, 99), (Sequences(10), 200, 99), (Sequences(10, period=10), 1, 50)],
)
def test_a_min_size_that_is_never_reached_is_refused(new_table: NewTable, steps: Item, episode: int, most: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"at most .*{most}") as refused:
        new_table(columns={"x": FRAME}, steps=steps, capacity=100, min_size=most + 1)
    assert refused.value.metadata["field"] == "min_size"
    table = new_table(columns={"x": FRAME}, steps=steps, capacity=100, min_size=most)
    with table.writer() as writer:
        for step in range(1, 201):
            writer.append(x=np.zeros(4, np.uint8))
            if step % episode == 0:
                writer.end_episode(x=np.zeros(4, np.uint8))
    assert table.sample(1, beta=0.0).drawable == most


@pytest.mark.parametrize(
    ("options", "field"),
    [({"capacity": 3}, "capacity"), ({"epsilon": 0.0}, "epsilon")],
)
def test_steps_exclude_small_tables_and_zero_mass(new_table: NewTable, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        new_table(columns={"x": FRAME}, steps=Transitions(3), **options)
    assert refused.value.metadata["field"] == field
