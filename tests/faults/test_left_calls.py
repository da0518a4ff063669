"""Calls that are begun and left, in short: `python -m tools.faults.left_calls` measures all RPCs."""

from __future__ import annotations

from tools.faults.left_calls import ALLOWED_MB, GIVEN_BACK_MB, WAYS, Cost, Spells, run

CALLS = 30


def test_calls_that_are_begun_and_left_cost_others_nothing_that_stays() -> None:
    costs = [*run(("Insert",), CALLS, Spells(alone_s=0.0, beside_s=0.0), is_brief=True)]
    assert [cost.way for cost in costs] == [*WAYS]
    for cost in costs:
        assert not cost.beside.errors, cost
        assert not cost.active, cost
        assert cost.rise_mb < ALLOWED_MB, cost
        assert cost.left_mb < GIVEN_BACK_MB, cost
        assert len(cost.line()) <= 80
    assert len(Cost.row(Cost.HEADS)) <= 80
