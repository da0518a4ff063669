"""The option ``--watch``: refreshes a full screen in a terminal, or adds lines to a pipe or file.

While the server is away, the command waits and shows for how long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live

from replay_client.cli.formats import duration_text
from replay_client.cli.options import print_json
from replay_client.errors import DeadlineExceededError, ReplayError, ServerUnavailableError

S = TypeVar("S")


@dataclass(frozen=True)
class Problem:
    """Why there is nothing new to show."""

    message: str
    """The client's error message."""
    away_s: float | None
    """Seconds since the server last answered; None if it answered with an error."""

    def __str__(self) -> str:
        return self.message if self.away_s is None else f"server away for {duration_text(self.away_s)}: {self.message}"


@dataclass(frozen=True)
class Watched(Generic[S]):
    """What to watch, and how to show it."""

    poll: Callable[[], S]
    """Fetches what is watched; may raise `ReplayError`."""
    screen: Callable[[Console, S, str], RenderableType]
    """Renders it for the terminal's size. The last argument says why there is nothing newer, or is empty."""
    line: Callable[[S], str]
    """Summarizes it in one line."""
    plain: Callable[[S], object]
    """Converts it for JSON."""


def watch(watched: Watched[S], interval_s: float, *, as_json: bool) -> None:
    """Fetch and show ``watched`` every ``interval_s`` seconds until Ctrl-C. Raise only errors of the first request."""
    console = Console()
    try:
        if as_json:
            _print_objects(watched, interval_s)
        elif console.is_terminal:
            _show(console, watched, interval_s)
        else:
            _print_lines(watched, interval_s)
    except KeyboardInterrupt:
        pass


def polls(
    poll: Callable[[], S], interval_s: float, pause: Callable[[float], object] = time.sleep
) -> Iterator[S | Problem]:
    """Call ``look`` forever; yield its results, or a `Problem` for each error. Raise only errors of the first call.

    ``pause`` waits for a number of seconds between two requests.
    """
    yield poll()
    answered = time.monotonic()
    while True:
        pause(interval_s)
        try:
            seen = poll()
        except ReplayError as error:
            is_away = isinstance(error, (ServerUnavailableError, DeadlineExceededError))
            yield Problem(error.message, time.monotonic() - answered if is_away else None)
            answered = answered if is_away else time.monotonic()
        else:
            yield seen
            answered = time.monotonic()


def _show(console: Console, watched: Watched[S], interval_s: float) -> None:
    last: S | None = None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for seen in polls(watched.poll, interval_s):
            last = last if isinstance(seen, Problem) else seen
            assert last is not None  # the first request raises errors
            problem = str(seen) if isinstance(seen, Problem) else ""
            live.update(watched.screen(console, last, problem), refresh=True)


def _print_lines(watched: Watched[S], interval_s: float) -> None:
    for seen in polls(watched.poll, interval_s):
        text = str(seen) if isinstance(seen, Problem) else watched.line(seen)
        print(time.strftime("%H:%M:%S"), text, flush=True)


def _print_objects(watched: Watched[S], interval_s: float) -> None:
    for seen in polls(watched.poll, interval_s):
        found = {"error": seen.message, "away_s": seen.away_s} if isinstance(seen, Problem) else watched.plain(seen)
        print_json(found, indent=None)
