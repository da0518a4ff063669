"""The paired benchmark: starts a checkout, measures every kind of learner step, and compares."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import paired

HERE = Path(__file__).parents[2]


@pytest.mark.deep
def test_a_checkout_is_measured_in_every_way_of_stepping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "_CAPACITIES", {"cartpole": 1_000})
    monkeypatch.setattr(paired, "ROUNDS", 2)
    monkeypatch.setattr(paired, "WINDOW_S", 0.02)
    medians = paired.one_start([HERE], [0], "cartpole")
    prefetches = [f"sampler, prefetch {prefetch}" for prefetch in (1, 3, 16)]
    inserts = ["insert of 256 rows", "insert of 256 rows, over gRPC", "writer, row by row"]
    steps = [*prefetches, "single calls", "sampler, prefetch 3, over gRPC"]
    assert list(medians) == [*steps, *inserts, "start of a server with the table"]
    assert all(len(times) == 1 and times[0] > 0 for times in medians.values())


def test_ratios_are_averaged_over_starts() -> None:
    assert paired.compared([[200.0, 100.0], [50.0, 100.0]]) == ["125", "100", "1.000 +- 0.693"]
    assert paired.compared([[300.0, 100.0]] * 3) == ["300", "100", "3.000 +- 0.000"]
