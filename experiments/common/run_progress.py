"""Shows the progress and results of an experiment's runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

log = logging.getLogger(__name__)

FILE_WIDTH: Final = 140
"""Width in characters of tables that are written to a file or a pipe."""


class RunProgress(Protocol):
    """Shows the progress of runs."""

    def note(self, text: str) -> None:
        """Show what is running."""
        ...

    def advance(self, text: str) -> None:
        """Count a finished run, and show its result."""
        ...


class _Bar:
    def __init__(self, progress: Progress, title: str, total: int, done: int) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=total, completed=done, note="")

    def note(self, text: str) -> None:
        self._progress.update(self._task, note=text)

    def advance(self, text: str) -> None:
        self._progress.update(self._task, advance=1, note=text)


class _Lines:
    def __init__(self, title: str, total: int, done: int) -> None:
        self._title, self._total, self._done = title, total, done

    def note(self, text: str) -> None:
        log.debug("%s: %s", self._title, text)

    def advance(self, text: str) -> None:
        self._done += 1
        log.info("%s %d/%d: %s", self._title, self._done, self._total, text)


@contextmanager
def run_progress(console: Console, title: str, total: int, done: int) -> Iterator[RunProgress]:
    """Show progress: as a bar in a terminal, otherwise as a line for each finished run.

    Args:
        console: the output.
        title: title of the experiment.
        total: number of runs, including those done earlier.
        done: runs that were done earlier.
    """
    if not console.is_terminal:
        yield _Lines(title, total, done)
        return
    progress = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )
    with progress:
        yield _Bar(progress, title, total, done)


def result_console() -> Console:
    """Return a console on standard output. If the output is not a terminal, the console is wide enough for tables."""
    console = Console()
    return console if console.is_terminal else Console(width=FILE_WIDTH)
