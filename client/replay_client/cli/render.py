"""Renders statistics as tables and plots for the terminal."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from replay_client.cli.text_plot import bar_chart
from replay_client.cli.units import bytes_text, count_text, duration_text, number_text
from replay_client.results.checkpoints import Checkpoint
from replay_client.results.description import TableDescription
from replay_client.results.stats import MethodStats, ServerStats, Stats, StepStats, TableStats, TimesSampled

_BARS_WIDTH = 24
_FILL_WIDTH = 10
_WIDE = 116
"""Minimum terminal width for additional columns."""
_ACCENT = "cyan"
_FAINT = "dim"


def table_list(descriptions: Sequence[TableDescription], server: str) -> RenderableType:
    """Render a list of a server's tables with their columns."""
    if not descriptions:
        return Text(f"{server} has no tables", _FAINT)
    grid = _grid("table", "backend", ">rows", ">of", ">row", "columns")
    for description in descriptions:
        grid.add_row(
            Text(description.name, f"bold {_ACCENT}"),
            description.backend,
            count_text(description.size),
            count_text(description.capacity),
            bytes_text(description.row_bytes),
            Text("\n").join(_column(name, column) for name, column in _columns(description).items()),
        )
    return grid


def checkpoint_list(checkpoints: Sequence[Checkpoint], server: str) -> RenderableType:
    """Render a list of a server's checkpoints."""
    if not checkpoints:
        return Text(f"{server} has no checkpoints", _FAINT)
    grid = _grid("checkpoint", "taken", ">size", "tables")
    for checkpoint in checkpoints:
        grid.add_row(
            Text(checkpoint.name, f"bold {_ACCENT}"),
            f"{datetime.fromtimestamp(checkpoint.taken_s):%Y-%m-%d %H:%M:%S}",
            bytes_text(checkpoint.bytes),
            Text("\n").join(
                Text.assemble(table.name, (f" {count_text(table.size)} rows", _FAINT))
                for table in checkpoint.tables.values()
            ),
        )
    return grid


def stats_view(
    stats: Stats, server: str, table: str | None, width: int, most: int | None = None, trouble: str = ""
) -> RenderableType:
    """Render the statistics of a server: one table in detail, or a list of all tables.

    ``width`` is the terminal's width in characters. ``most`` limits the number of tables and methods shown. ``trouble``
    is the reason why there are no newer statistics; empty if there is none.
    """
    header: list[RenderableType] = [_server_line(stats.server, server)]
    if trouble:
        header.append(Text(f"no statistics: {trouble}", "red"))
    if table is not None:
        return Group(*header, Text(table, f"bold {_ACCENT}", overflow="fold"), _table_detail(stats.tables[table]))
    tables, methods = list(stats.tables.values()), list(stats.server.methods.values())
    room = len(tables) + len(methods) if most is None else most
    shown_methods = min(len(methods), max(room // 2, room - len(tables)))
    shown_tables = min(len(tables), room - shown_methods)
    return Group(
        *header,
        "",
        _table_figures(tables[:shown_tables], is_wide=width >= _WIDE),
        _left_out(len(tables) - shown_tables, "tables"),
        _method_figures(methods[:shown_methods]),
        _left_out(len(methods) - shown_methods, "methods"),
    )


def stats_screen(console: Console, stats: Stats, server: str, table: str | None, trouble: str = "") -> RenderableType:
    """Like `stats_view`, with as many tables and methods as fit into the terminal's height."""

    def view(most: int) -> RenderableType:
        return stats_view(stats, server, table, console.width, most, trouble)

    def is_too_high(most: int) -> bool:
        return len(console.render_lines(view(most), pad=False)) > console.height

    return view(max(0, bisect_left(range(console.height), True, key=is_too_high) - 1))


def _left_out(count: int, what: str) -> Text:
    return Text(f"{count} more {what} do not fit into this terminal\n" if count else "", _FAINT)


def _server_line(server: ServerStats, address: str) -> Text:
    return Text.assemble(
        (address, f"bold {_ACCENT}"),
        (f"  version {server.version}", _FAINT),
        f"  up {duration_text(server.uptime_s)}",
        f"  memory {bytes_text(server.resident_bytes)}",
        f"  cpu {duration_text(server.cpu_s)}",
    )


def _table_figures(tables: Iterable[TableStats], *, is_wide: bool) -> RenderableType:
    headings = ["table", "backend", ">rows", "filled", ">inserted/s", ">drawn/s", ">updated/s"]
    grid = _grid(*headings, *([">stale", ">waiting", ">oldest", ">largest priority"] if is_wide else []))
    for table in tables:
        figures: list[RenderableType] = [
            Text(table.name, f"bold {_ACCENT}"),
            table.table.backend,
            count_text(table.size),
            _fill(table.table, _FILL_WIDTH if is_wide else 0),
            count_text(table.rates.inserted_per_s),
            count_text(table.rates.sampled_per_s),
            count_text(table.rates.updated_per_s),
        ]
        if is_wide:
            figures += [
                count_text(table.stale),
                Text(count_text(table.waiting), "yellow" if table.waiting else ""),
                duration_text(max(table.ages_s.values(), default=0.0)),
                number_text(table.largest_priority),
            ]
        grid.add_row(*figures)
    return grid if grid.row_count else Text("no tables", _FAINT)


def _method_figures(methods: Iterable[MethodStats]) -> RenderableType:
    grid = _grid("method", ">answered", ">failed", ">active", ">mean ms", ">p50 ms", ">p99 ms")
    for method in methods:
        grid.add_row(
            method.method,
            count_text(method.calls),
            Text(count_text(method.errors), "yellow" if method.errors else _FAINT),
            count_text(method.active),
            f"{method.mean_ms:.2f}",
            f"{method.p50_ms:.2f}",
            f"{method.p99_ms:.2f}",
        )
    return grid if grid.row_count else Text("no calls yet", _FAINT)


def _table_detail(table: TableStats) -> RenderableType:
    quantiles = Table.grid(padding=(0, 1))
    for justify in ("left", "right", "right"):
        quantiles.add_column(justify=justify)
    quantiles.add_row(*(Text(heading, "bold") for heading in ("up to", "priority", "age")))
    for fraction in sorted({*table.priorities, *table.ages_s}):
        quantiles.add_row(
            _quantile_name(fraction),
            _found(table.priorities, fraction, number_text),
            _found(table.ages_s, fraction, duration_text),
        )
    figures = Panel(_key_figures(table), title="table", box=box.ROUNDED)
    spread = Group(
        Panel(quantiles, title="priorities and ages", box=box.ROUNDED),
        Panel(_times_sampled(table.times_sampled), title="rows by times drawn", box=box.ROUNDED),
    )
    side_by_side = Table.grid()
    side_by_side.add_column()
    side_by_side.add_column(no_wrap=True)
    side_by_side.add_row(figures, spread)
    return side_by_side


def _key_figures(table: TableStats) -> Table:
    parameters = ", ".join(f"{name} {number_text(value)}" for name, value in table.table.parameters.items())
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=_FAINT, no_wrap=True)
    grid.add_column(justify="right", overflow="fold")
    for label, value in (
        ("backend", table.table.backend),
        *([("", parameters)] if parameters else []),
        ("rows", f"{count_text(table.size)} of {count_text(table.capacity)}, {_share(table.table):.0%}"),
        *([("steps", _steps(table.steps))] if table.steps else []),
        ("memory", f"{bytes_text(table.bytes)}, {bytes_text(table.table.row_bytes)} a row"),
        ("inserted", _ever(table.inserted, table.rates.inserted_per_s)),
        ("drawn", _ever(table.sampled, table.rates.sampled_per_s)),
        ("updated", _ever(table.updated, table.rates.updated_per_s)),
        ("stale updates", count_text(table.stale)),
        *([("lost in power losses", count_text(table.lost))] if table.lost else []),
        *([("failed syncs", _failed_syncs(table))] if table.failed_syncs else []),
        ("batch staleness", f"{table.staleness:.1f} updates"),
        ("copied on this host", f"{count_text(table.sampled_same_host)} rows"),
        ("evicted", count_text(table.evicted)),
        ("repeated inserts", count_text(table.repeated_inserts)),
        ("calls waiting", _waiting(table)),
        *_limiter_figures(table),
        ("total mass", number_text(table.total_mass)),
        ("priorities", f"{number_text(table.smallest_priority)} to {number_text(table.largest_priority)}"),
    ):
        grid.add_row(label, value)
    return grid


def _steps(steps: StepStats) -> str:
    counts = {name: getattr(steps, name) for name in ("drawable", "pending", "broken", "closing")}
    return ", ".join(f"{count_text(count)} {name}" for name, count in counts.items())


def _failed_syncs(table: TableStats) -> str:
    return f"{count_text(table.failed_syncs)}, {count_text(table.unsynced)} rows not on disk"


def _waiting(table: TableStats) -> str:
    inserts = f", {count_text(table.waiting_inserts)} to insert" if table.waiting_inserts else ""
    return count_text(table.waiting) + inserts


def _limiter_figures(table: TableStats) -> list[tuple[str, str]]:
    limit, stands = table.table.rate_limit, table.rate_limiter
    if limit is None or stands is None:
        return []
    figures = [("drawn from", f"{count_text(limit.min_size)} rows on")]
    if limit.samples_per_insert is not None:
        bounds = f"{number_text(limit.min_diff)} to {number_text(limit.max_diff)}"
        figures += [
            ("draws per insert", number_text(limit.samples_per_insert)),
            ("difference", f"{number_text(stands.difference)} of {bounds}"),
        ]
    return figures


def _times_sampled(bars: Sequence[TimesSampled]) -> RenderableType:
    if not any(bar.rows for bar in bars):
        return Text("no rows", _FAINT)
    named = [
        (f"{bar.at_least}" if bar.at_least == bar.at_most else f"{bar.at_least}-{bar.at_most}", bar.rows)
        for bar in bars
    ]
    return bar_chart(named, _BARS_WIDTH, (_ACCENT, _FAINT))


def _grid(*headings: str) -> Table:
    """Create an empty table; ``>`` in front of a heading right-aligns the column."""
    grid = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        justify: Literal["left", "right"] = "right" if heading.startswith(">") else "left"
        # In narrow terminals, wrap long text (names, and lists in the last column) before truncating numbers.
        is_short = justify == "right" or 0 < place < len(headings) - 1
        grid.add_column(heading.removeprefix(">"), justify=justify, no_wrap=is_short, overflow="fold")
    return grid


def _columns(description: TableDescription) -> Mapping[str, object]:
    return description.schema if description.steps is None else {**description.schema, **description.steps.derived}


def _column(name: str, column: object) -> Text:
    return Text.assemble(name, (f" {column}", _FAINT))


def _share(description: TableDescription) -> float:
    return description.size / description.capacity


def _fill(description: TableDescription, bar_width: int = _FILL_WIDTH) -> RenderableType:
    """Render the fill level: a bar and a percentage, or only the percentage if the bar has no width."""
    share = _share(description)
    percentage = Text(f"{share:.0%}".rjust(4), _FAINT)
    if not bar_width:
        return percentage
    bar = ProgressBar(total=1.0, completed=share, width=bar_width, complete_style=_ACCENT, finished_style=_ACCENT)
    grid = Table.grid(padding=(0, 1))
    grid.add_row(bar, percentage)
    return grid


def _ever(total: int, per_s: float) -> str:
    return f"{count_text(total)}, {count_text(per_s)}/s"


def _quantile_name(fraction: float) -> str:
    return {0.0: "least", 0.5: "median", 1.0: "most"}.get(fraction, f"{fraction:.4g}")


def _found(quantiles: Mapping[float, float], fraction: float, as_text: Callable[[float], str]) -> str:
    value = quantiles.get(fraction)
    return "" if value is None else as_text(value)
