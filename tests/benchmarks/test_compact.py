"""The benchmarks of tables of steps: ratios, and what `make bench` measures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from benchmarks import compact
from benchmarks.contestants import REVERB
from benchmarks.report import Section

TIMES = {
    "transitions, one host": [100.0, 300.0, 200.0],
    "transitions, gRPC": [500.0],
    "steps, n = 1, one host": [150.0],
    "steps, n = 1, gRPC": [400.0],
}


def test_each_table_is_compared_with_transitions_on_the_same_path() -> None:
    rows = compact.step_rows(TIMES, {"transitions, gRPC": 1900.4, "steps, n = 1, gRPC": 1190.0})
    assert [row[1] for row in rows] == ["200 (100 to 300)", "500 (500 to 500)", "150 (150 to 150)", "400 (400 to 400)"]
    assert [row[2:] for row in rows] == [["1.000", ""], ["1.000", "1,900"], ["0.750", ""], ["0.800", "1,190"]]


def test_reverb_adds_a_column_and_has_no_ratio_to_transitions() -> None:
    rows = compact.step_rows({**TIMES, REVERB: [2000.0]}, {})
    assert [row[2:4] for row in rows] == [
        ["1.000", "0.100"],
        ["1.000", "0.250"],
        ["0.750", "0.075"],
        ["0.800", "0.200"],
        ["", "1.000"],
    ]


@pytest.mark.parametrize("free", [compact.MEMORY_NEEDED - 1, compact.MEMORY_NEEDED])
def test_a_million_transitions_are_measured_if_there_is_room_for_them(
    monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    for subject in ("steps", "writing", "sequences", "memory"):
        section = Section(title=subject, command="", header=[], rows=[])
        monkeypatch.setattr(compact, f"measure_{subject}", lambda *_, section=section: section)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    titles = [section.title for section in compact.measure_all(Path(), 1, 0.1)]
    assert titles == ["steps", "steps", "writing", "sequences", *(["memory"] if free == compact.MEMORY_NEEDED else [])]
