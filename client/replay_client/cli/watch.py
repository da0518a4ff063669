"""``replay stats --watch``: refreshes a full screen in a terminal, or adds lines to a pipe or file.

While the server is away, the command waits and shows for how long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live

from replay_client.cli import render
from replay_client.cli.options import print_json
from replay_client.cli.plain import plain_stats
from replay_client.cli.units import bytes_text, duration_text, number_text
from replay_client.errors import DeadlineExceededError, ReplayError, ServerUnavailableError
from replay_client.results.stats import Stats, TableStats


@dataclass(frozen=True)
class Trouble:
    """Why there are no statistics."""

    message: str
    """The client's error message."""
    away_s: float | None
    """Seconds since the server last answered; None if it answered with an error."""

    def __str__(self) -> str:
        return self.message if self.away_s is None else f"server away for {duration_text(self.away_s)}: {self.message}"


Look = Callable[[], Stats]


def watch(look: Look, address: str, table: str | None, interval_s: float, *, as_json: bool) -> None:
    """Show one table or all tables every ``interval_s`` seconds until Ctrl-C. Only the first request may raise."""
    console = Console()
    try:
        if as_json:
            _print_objects(look, interval_s)
        elif console.is_terminal:
            _show(console, look, address, table, interval_s)
        else:
            _print_lines(look, interval_s)
    except KeyboardInterrupt:
        pass


def _looks(look: Look, interval_s: float) -> Iterator[Stats | Trouble]:
    """Yield statistics, or the reason why there are none, forever."""
    yield look()
    answered = time.monotonic()
    while True:
        time.sleep(interval_s)
        try:
            stats = look()
        except ReplayError as error:
            is_away = isinstance(error, (ServerUnavailableError, DeadlineExceededError))
            yield Trouble(error.message, time.monotonic() - answered if is_away else None)
            answered = answered if is_away else time.monotonic()
        else:
            yield stats
            answered = time.monotonic()


def _show(console: Console, look: Look, address: str, table: str | None, interval_s: float) -> None:
    last: Stats | None = None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for seen in _looks(look, interval_s):
            last = seen if isinstance(seen, Stats) else last
            assert last is not None  # the first refresh raises errors
            trouble = "" if isinstance(seen, Stats) else str(seen)
            live.update(render.stats_screen(console, last, address, table, trouble), refresh=True)


def _print_lines(look: Look, interval_s: float) -> None:
    for seen in _looks(look, interval_s):
        print(time.strftime("%H:%M:%S"), seen if isinstance(seen, Trouble) else _line(seen), flush=True)


def _print_objects(look: Look, interval_s: float) -> None:
    for seen in _looks(look, interval_s):
        found = {"error": seen.message, "away_s": seen.away_s} if isinstance(seen, Trouble) else plain_stats(seen)
        print_json(found, indent=None)


def _line(stats: Stats) -> str:
    server = f"up {duration_text(stats.server.uptime_s)}, {bytes_text(stats.server.resident_bytes)}"
    return "; ".join([server, *(_table_text(name, table) for name, table in stats.tables.items())])


def _table_text(name: str, table: TableStats) -> str:
    rates = table.rates
    return (
        f"{name} {table.table.size:,} of {table.table.capacity:,} rows, per s: {number_text(rates.inserted_per_s)} "
        f"inserted, {number_text(rates.sampled_per_s)} sampled, {number_text(rates.updated_per_s)} updated"
    )
