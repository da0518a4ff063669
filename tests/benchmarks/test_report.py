"""The document of benchmark results, and the source of its text."""

from __future__ import annotations

import io

from rich.console import Console

from benchmarks.report import Section


def test_the_terminal_shows_what_the_page_says_of_the_figures() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    Section("Steps", "python -m steps", ["figure"], [["17"]], notes=["Windows of [1 s]."]).show(console)
    assert console.export_text().endswith("Windows of [1 s].\n")
