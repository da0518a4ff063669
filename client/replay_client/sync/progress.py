"""Shows the progress of work on many rows, on standard error: a bar in a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

Advance = Callable[[int], object]
"""Advances a display by a number of rows."""
LINE_EVERY_S: Final = 10.0
"""Seconds between two lines."""


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Advance]:
    """Show a bar (needs the extra ``cli``): rows of all rows, their rate, and the time left.

    Yields:
        What advances it.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    texts = TextColumn("[bold]{task.description}"), TextColumn("{task.fields[rate]}")
    columns = (texts[0], BarColumn(), MofNCompleteColumn(), texts[1], TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total, rate="")
        pace = _Pace(total)

        def advance(rows: int) -> None:
            pace.add(rows)
            progress.update(task, advance=rows, rate=pace.rate)

        yield advance


@contextmanager
def progress_lines(title: str, total: int, *, every_s: float = LINE_EVERY_S) -> Iterator[Advance]:
    """Print a line every so many seconds, with what `progress_bar` shows. Yields what advances it."""
    pace = _Pace(total)
    next_line = time.monotonic() + every_s

    def advance(rows: int) -> None:
        nonlocal next_line
        pace.add(rows)
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + every_s
            print(f"{title}: {pace}", file=sys.stderr, flush=True)

    yield advance


class _Pace:
    """How many of the rows are done, and how fast."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._began = time.monotonic()

    def add(self, rows: int) -> None:
        """Count rows that were done."""
        self._done += rows

    @property
    def rate(self) -> str:
        """Rows per second."""
        return f"{self._per_s:,.0f} rows/s"

    def __str__(self) -> str:
        left = timedelta(seconds=round((self._total - self._done) / self._per_s)) if self._done else "unknown time"
        return f"{self._done:,} of {self._total:,} rows, {self.rate}, {left} left"

    @property
    def _per_s(self) -> float:
        return self._done / max(time.monotonic() - self._began, 1e-9)
