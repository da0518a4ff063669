"""Renders the statistics of one table for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from replay_client.cli.distribution import merged
from replay_client.cli.formats import (
    ACCENT,
    FAINT,
    bytes_text,
    count_text,
    duration_text,
    number_text,
    printable_text,
)
from replay_client.cli.text_plot import bar_chart
from replay_client.results.description import TableDescription
from replay_client.results.stats import StepStats, TableStats, TimesSampled, WaitStats

_BARS_WIDTH = 24
_URGENT = "yellow"


def table_view(table: TableStats, most_bars: int | None = None, *, is_narrow: bool = False) -> RenderableType:
    """Render a table's waiting calls, key figures and distributions; the histogram has at most ``most_bars`` bars.

    ``is_narrow`` puts the panels below each other.
    """
    waits, figures = map(wait_text, table.waits), Panel(_key_figures(table), title="table", box=box.ROUNDED)
    spread = Group(
        Panel(_quantiles(table), title="priorities and ages" + ", about" * bool(table.shards), box=box.ROUNDED),
        Panel(_times_sampled(table.times_sampled, most_bars), title="rows by times drawn", box=box.ROUNDED),
    )
    if is_narrow:
        return Group(*waits, figures, spread)
    side_by_side = Table.grid()
    side_by_side.add_column()
    side_by_side.add_column(no_wrap=True)
    side_by_side.add_row(figures, spread)
    return Group(*waits, side_by_side)


def wait_text(wait: WaitStats, name: str = "") -> Text:
    """Render a sentence that says who waits for what. ``name`` is the table's name; empty if the context shows it."""
    prefix = f"{name}: " if name else ""
    text = Text(printable_text(f"{prefix}{wait}"), _URGENT)
    text.stylize("bold", 0, len(prefix))
    return text


def fill_share(description: TableDescription) -> float:
    """Return the fraction of the capacity that is in use."""
    return description.size / description.capacity


def _key_figures(table: TableStats) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=FAINT, no_wrap=True)
    grid.add_column(justify="right", overflow="fold")
    for label, value in _facts(table):
        grid.add_row(label, value)
    return grid


def _facts(table: TableStats) -> Iterator[tuple[str, str]]:
    """Yield labels and values. Leave out counts of rare events that did not happen."""
    yield "backend", printable_text(table.table.backend)
    if table.table.parameters:
        yield "", ", ".join(f"{name} {number_text(value)}" for name, value in table.table.parameters.items())
    yield "rows", f"{count_text(table.size)} of {count_text(table.capacity)}, {fill_share(table.table):.0%}"
    if table.steps:
        yield "steps", _steps(table.steps)
    yield "memory", f"{bytes_text(table.bytes)}, {bytes_text(table.table.row_bytes)} a row"
    yield "inserted", _ever(table.inserted, table.rates.inserted_per_s)
    yield "drawn", _ever(table.sampled, table.rates.sampled_per_s)
    yield "updated", _ever(table.updated, table.rates.updated_per_s)
    yield "stale updates", count_text(table.stale)
    if table.lost:
        yield "lost with servers" if table.shards else "lost in power losses", count_text(table.lost)
    if table.failed_syncs:
        yield "failed syncs", f"{count_text(table.failed_syncs)}, {count_text(table.unsynced)} rows not on disk"
    yield "batch staleness", f"{table.staleness:.1f} updates"
    yield "evicted", count_text(table.evicted)
    for label, count in (
        ("copied on this host", table.sampled_same_host),
        ("repeated inserts", table.repeated_inserts),
        ("calls that waited", table.waited),
    ):
        if count:
            yield label, count_text(count)
    yield from _limiter_facts(table)
    yield "total mass", number_text(table.total_mass)
    yield "priorities", f"{number_text(table.smallest_priority)} to {number_text(table.largest_priority)}"


def _limiter_facts(table: TableStats) -> Iterator[tuple[str, str]]:
    limit, stands = table.table.rate_limit, table.rate_limiter
    if limit is None or stands is None:
        return
    yield "drawn from", f"{count_text(limit.min_size)} rows on"
    if limit.samples_per_insert is not None:
        bounds = f"{number_text(limit.min_diff)} to {number_text(limit.max_diff)}"
        yield "draws per insert", number_text(limit.samples_per_insert)
        yield "difference", f"{number_text(stands.difference)} of {bounds}"


def _steps(steps: StepStats) -> str:
    counts = {name: getattr(steps, name) for name in ("drawable", "pending", "broken", "closing", "lost")}
    return ", ".join(f"{count_text(count)} {name}" for name, count in counts.items())


def _quantiles(table: TableStats) -> Table:
    grid = Table.grid(padding=(0, 1))
    for justify in ("left", "right", "right"):
        grid.add_column(justify=justify)
    grid.add_row(*(Text(heading, "bold") for heading in ("up to", "priority", "age")))
    for fraction in sorted({*table.priorities, *table.ages_s}):
        grid.add_row(
            _quantile_name(fraction),
            _found(table.priorities, fraction, number_text),
            _found(table.ages_s, fraction, duration_text),
        )
    return grid


def _times_sampled(bars: Iterable[TimesSampled], most: int | None) -> RenderableType:
    drawn: Sequence[TimesSampled] = [bar for bar in bars if bar.rows]
    if not drawn:
        return Text("no rows", FAINT)
    if most is not None:
        drawn = merged(drawn, max(1, most))
    named = [
        (f"{bar.at_least}" if bar.at_least == bar.at_most else f"{bar.at_least}-{bar.at_most}", bar.rows)
        for bar in drawn
    ]
    return bar_chart(named, _BARS_WIDTH, (ACCENT, FAINT))


def _ever(total: int, per_s: float) -> str:
    return f"{count_text(total)}, {count_text(per_s)}/s"


def _quantile_name(fraction: float) -> str:
    return {0.0: "least", 0.5: "median", 1.0: "most"}.get(fraction, f"{fraction:.4g}")


def _found(quantiles: Mapping[float, float], fraction: float, as_text: Callable[[float], str]) -> str:
    value = quantiles.get(fraction)
    return "" if value is None else as_text(value)
