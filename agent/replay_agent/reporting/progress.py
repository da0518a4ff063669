"""Measures and shows progress: a bar in a terminal, periodic log lines elsewhere."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from rich.console import Console, RenderableType
from rich.logging import RichHandler
from rich.progress import (
    BarColumn,
    Progress,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

log = logging.getLogger(__name__)

RATE_WINDOW_S = 5.0
LINE_INTERVAL_S = 10.0
STANDSTILL_S = 2.0
"""If no step is taken for this long, the bar says so."""
SPEED_WINDOW_S = 60.0
"""The time left is estimated from the mean speed in a window of this length, which includes validations."""
UNKNOWN = "-"
FIGURES = (
    "  {steps}  [cyan]{speed}[/] steps/s  return [green]{recent}[/]  best [green]{best}[/]",
    "  loss {loss}  ε {epsilon}  β {beta}",
)


@dataclass(frozen=True)
class Status:
    """Status of a run at one moment.

    Attributes:
        env_steps: environment steps over all actors.
        updates: gradient steps.
        recent_return: mean return of the last training episodes.
        best_mean: mean return of the best network, over all validation episodes that it played.
        loss: smoothed weighted loss.
        grad_norm: smoothed norm of the gradient before clipping.
        mean_value: smoothed mean value of the actions in batches.
        epsilon: probability of a random action; None if actors have different ones.
        beta: importance-sampling exponent.
        steps_per_s: recent environment steps per second.
        updates_per_s: recent gradient steps per second.
        batch_wait_s: seconds that the learner has waited for batches.
        note: anything else, such as what the learner is waiting for.
    """

    env_steps: int
    updates: int
    recent_return: float | None
    best_mean: float | None
    loss: float | None
    grad_norm: float | None
    mean_value: float | None
    epsilon: float | None
    beta: float
    steps_per_s: float
    updates_per_s: float
    batch_wait_s: float = 0.0
    note: str = ""


class RateMeter:
    """Measures how fast a count has grown in the last `RATE_WINDOW_S`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._points: deque[tuple[float, int]] = deque()

    def per_second(self, count: int) -> float:
        """Record the current count and return its growth per second."""
        now = self._clock()
        self._points.append((now, count))
        while len(self._points) > 1 and now - self._points[0][0] > RATE_WINDOW_S:
            self._points.popleft()
        first_time, first_count = self._points[0]
        return (count - first_count) / (now - first_time) if now > first_time else 0.0


class ProgressView(AbstractContextManager["ProgressView"]):
    """Base class of views that show the status of a run. It shows nothing itself."""

    def show(self, status: Status) -> None:
        """Show the status; called several times per second."""

    def __exit__(self, kind: Any, error: Any, traceback: Any, /) -> None:
        """Stop showing the status."""


class ProgressBar(Progress, ProgressView):
    """A bar in a terminal, with figures below it, because they do not fit into 80 columns side by side."""

    def __init__(
        self, console: Console, title: str, total_steps: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            expand=True,
            get_time=clock,
            speed_estimate_period=SPEED_WINDOW_S,
        )
        self._counts = (0, 0)
        fields: dict[str, Any] = dict.fromkeys(("recent", "best", "loss", "epsilon", "beta", "speed"), UNKNOWN)
        self._run = self.add_task(title, total=total_steps, note="", moved_s=clock(), **fields)

    def show(self, status: Status) -> None:
        """Update the bar."""
        counts = (status.env_steps, status.updates)
        fields = _fields(status)
        if counts != self._counts:
            fields["moved_s"] = self.get_time()
        self._counts = counts
        self.update(self._run, completed=status.env_steps, **fields)

    def get_renderables(self) -> Iterable[RenderableType]:
        """See `Progress`."""
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            shown = f"{task.completed:,.0f} of {task.total or 0:,.0f} steps"
            steps, *others = (line.format(steps=shown, **task.fields) for line in FIGURES)
            yield Text.from_markup(steps, overflow="fold")
            yield Text.from_markup("  ".join([*others, f"[yellow]{_note(task)}[/]"]), overflow="fold")


class ProgressLines(ProgressView):
    """Periodic log lines."""

    def __init__(self, title: str, total_steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._title = title
        self._total_steps = total_steps
        self._clock = clock
        self._next = 0.0

    def show(self, status: Status) -> None:
        """Log a line if one is due."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + LINE_INTERVAL_S
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
    return ProgressLines(title, total_steps)


def _note(task: Task) -> str:
    """Return the note. If no step was taken for `STANDSTILL_S`, append how long ago the last one was.

    The bar also calls this while the trainer is busy.
    """
    still_s = task.get_time() - task.fields["moved_s"]
    if task.finished or still_s < STANDSTILL_S:
        return str(task.fields["note"])
    return f"{task.fields['note'] or 'no step'} for {still_s:.0f} s"


def _fields(status: Status) -> dict[str, Any]:
    return {
        "recent": _number(status.recent_return, ".1f"),
        "best": _number(status.best_mean, ".1f"),
        "loss": _number(status.loss, ".3g"),
        "epsilon": _number(status.epsilon, ".2f"),
        "beta": f"{status.beta:.2f}",
        "speed": f"{status.steps_per_s:.0f}",
        "note": status.note,
    }


def _number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)


def set_up_logging(level: str) -> Console:
    """Log to standard error: above the progress bar in a terminal, and as plain text elsewhere.

    Args:
        level: minimum severity of messages, such as ``info``.

    Returns:
        The console of the progress bar.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False)
        logging.basicConfig(level=level.upper(), handlers=[handler], format="%(message)s")
    else:
        logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s  %(message)s")
    return console
