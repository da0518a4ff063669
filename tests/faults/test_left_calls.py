"""Calls that are begun and left, in short: `python -m tests.faults.left_calls` measures all RPCs."""

from __future__ import annotations

from tests.faults.left_calls import ALLOWED_MB, run

CALLS = 30


def test_calls_that_are_begun_and_left_cost_others_nothing_that_stays() -> None:
    for cost in run(("Insert",), calls=CALLS, alone_s=0.0):
        assert not cost.beside.errors, cost
        assert not cost.active, cost
        assert cost.left_mb < ALLOWED_MB, cost
