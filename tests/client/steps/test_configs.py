"""Tables of steps that cannot be: the error names the field, and nothing is asked of a server."""

from __future__ import annotations

from typing import Any

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
    Transitions,
)

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
        ({"x": FRAME}, Transitions(0), "steps.n_step"),
        ({"x": FRAME}, Transitions(1, 1.5), "steps.gamma"),
        ({"x": FRAME}, Sequences(0), "steps.length"),
        ({"x": FRAME}, Sequences(2, burn_in=-1), "steps.burn_in"),
        ({"x": FRAME}, Sequences(2, period=3), "steps.period"),
        ({"x": FRAME}, "transitions", "steps"),
        ({"x": Column("uint8", sampled=False)}, Transitions(), "columns"),
    ],
)
def test_what_does_not_fit_together_is_refused(columns: Any, steps: Any, field: str) -> None:
    with ReplayClient("localhost:1") as client, pytest.raises(InvalidArgumentError) as refused:
        client.create_table("t", columns=columns, capacity=10, steps=steps)
    assert refused.value.metadata["field"] == field
