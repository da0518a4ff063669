"""The document of benchmark results, and the source of its text."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import FINDINGS

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def test_what_the_page_says_of_its_figures_is_what_is_written_when_they_are_measured_anew() -> None:
    assert PAGE.read_text("utf-8").endswith(FINDINGS.read_text("utf-8"))
