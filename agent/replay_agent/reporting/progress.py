"""Shows progress: a bar in a terminal, periodic log lines elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from replay_agent.reporting.status import Status

log = logging.getLogger(__name__)

LINE_INTERVAL_S = 10.0
REFRESH_INTERVAL_S = 0.2
UNKNOWN = "-"
FIGURES = (
    "  return [green]{recent}[/]  best [green]{best}[/]  loss {loss}  ε {epsilon}  β {beta}  "
    "[cyan]{speed}[/] steps/s  [yellow]{note}[/]"
)


class ProgressView(AbstractContextManager["ProgressView"]):
    """Shows nothing; subclasses show the status of a run."""

    def show(self, status: Status) -> None:
        """Show the status; called several times per second."""

    def __exit__(self, *_: object) -> None:
        """Stop showing the status."""


class _BarAboveFigures(Progress):
    """A bar with figures below it, because they do not fit into 80 columns side by side."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text.from_markup(FIGURES.format(**task.fields), overflow="fold")


class ProgressBar(ProgressView):
    """A bar in a terminal."""

    def __init__(self, console: Console, title: str, total_steps: int) -> None:
        self._progress = _BarAboveFigures(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        fields: dict[str, Any] = dict.fromkeys(("recent", "best", "loss", "epsilon", "beta", "speed"), UNKNOWN)
        self._task = self._progress.add_task(title, total=total_steps, note="", **fields)

    def show(self, status: Status) -> None:
        """Update the bar."""
        self._progress.update(self._task, completed=status.env_steps, **_fields(status))

    def __enter__(self) -> ProgressBar:
        """Show the bar."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last state on the screen."""
        self._progress.stop()


class ProgressLines(ProgressView):
    """Periodic log lines."""

    def __init__(
        self, title: str, total_steps: int, interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = title
        self._total_steps = total_steps
        self._interval_s = interval_s
        self._clock = clock
        self._next = 0.0

    def show(self, status: Status) -> None:
        """Log a line if one is due."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + self._interval_s
        log.info(
            "%s %d/%d return %s best %s loss %s epsilon %s beta %s, %s steps/s %s",
            self._title,
            status.env_steps,
            self._total_steps,
            *_fields(status).values(),
        )


def make_progress(console: Console, title: str, total_steps: int, *, shown: bool) -> ProgressView:
    """Choose the view for the console."""
    if not shown:
        return ProgressView()
    if console.is_terminal:
        return ProgressBar(console, title, total_steps)
    return ProgressLines(title, total_steps, LINE_INTERVAL_S)


def _fields(status: Status) -> dict[str, Any]:
    return {
        "recent": _number(status.recent_return, ".1f"),
        "best": _number(status.best_mean, ".1f"),
        "loss": _number(status.loss, ".3g"),
        "epsilon": f"{status.epsilon:.2f}",
        "beta": f"{status.beta:.2f}",
        "speed": f"{status.steps_per_s:.0f}",
        "note": status.note,
    }


def _number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)
