"""Renders lists of tables, checkpoints and statistics for the terminal."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from replay_client.cli.formats import (
    ACCENT,
    FAINT,
    bytes_text,
    count_text,
    duration_text,
    number_text,
    printable_text,
    shortened_text,
)
from replay_client.cli.table_view import fill_share, table_view, wait_text
from replay_client.results.copies import Checkpoint
from replay_client.results.description import TableDescription
from replay_client.results.shards import Shard, ShardMap
from replay_client.results.stats import MethodStats, Stats, TableStats

_ADDRESS = 24
"""Maximum width of an address in lists of figures."""
_ANY_WIDTH = 1000
"""Maximum width of a list, before columns are left out."""


def grid_of(*headings: str) -> Table:
    """Create a list with these headings and no rows; ``>`` in front of a heading right-aligns its column."""
    grid = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        justify: Literal["left", "right"] = "right" if heading.startswith(">") else "left"
        # In narrow terminals, wrap long text (names, and lists in the last column) before truncating numbers.
        is_short = justify == "right" or 0 < place < len(headings) - 1
        overflow: Literal["ellipsis", "fold"] = "ellipsis" if is_short else "fold"
        grid.add_column(heading.removeprefix(">"), justify=justify, no_wrap=is_short, overflow=overflow)
    return grid


class _FittedGrid:
    """A grid that leaves out columns in narrow terminals, so that no number in the other columns is cut."""

    def __init__(self, *headings: str, optional: Sequence[str]) -> None:
        """See `grid_of`; ``optional`` are headings of columns that may be left out, in this order."""
        self._headings = headings
        self._optional = optional
        self._rows: list[tuple[RenderableType, ...]] = []

    def add_row(self, *cells: RenderableType) -> None:
        """Add a row; the last columns may be empty."""
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the grid with as many columns as there is room for."""
        grid = self._without(())
        for count in range(1, len(self._optional) + 1):
            if console.measure(grid, options=options.update_width(_ANY_WIDTH)).maximum <= options.max_width:
                break
            grid = self._without(self._optional[:count])
        yield grid

    def _without(self, left_out: Sequence[str]) -> Table:
        kept = [place for place, heading in enumerate(self._headings) if heading not in left_out]
        grid = grid_of(*(self._headings[place] for place in kept))
        for cells in self._rows:
            grid.add_row(*(cells[place] for place in kept if place < len(cells)))
        return grid


def shard_list(shards: Iterable[Shard], server: str) -> RenderableType:
    """Render a list of the servers of a service."""
    grid = grid_of(">shard", "server", "state")
    for shard in shards:
        grid.add_row(Text(str(shard.id), f"bold {ACCENT}"), printable_text(shard.address), Text(shard.state, FAINT))
    return grid if grid.row_count else Text(f"the tables of {server} are on no other servers", FAINT)


def server_figures(stats: Stats) -> Iterator[RenderableType]:
    """Render how each server is doing; yield nothing if there is only one server."""
    if stats.shards is None:
        return
    headings = (">shard", "server", "state", ">up", ">memory", ">cpu", ">rows")
    grid = _FittedGrid(*headings, optional=(">cpu", ">up", ">memory"))
    for shard in stats.shards.in_use:
        server = stats.servers.get(shard.id)
        if server is None:
            grid.add_row(*_beginning(shard, is_away=True))
            continue
        rows = sum(table.shards[shard.id].size for table in stats.tables.values() if shard.id in table.shards)
        figures = duration_text(server.uptime_s), bytes_text(server.resident_bytes), duration_text(server.cpu_s)
        grid.add_row(*_beginning(shard), *figures, count_text(rows))
    yield Group(grid, Text())


def shard_figures(table: TableStats, shards: ShardMap | None) -> Iterator[RenderableType]:
    """Render the figures of each shard of a table; yield nothing if the table is on one server."""
    if shards is None or not table.shards:
        return
    rates = (">inserted/s", ">drawn/s", ">updated/s")
    grid = _FittedGrid(">shard", "server", "state", ">rows", ">mass", *rates, optional=(*rates[::-1], ">mass"))
    for shard in shards.in_use:
        part = table.shards.get(shard.id)
        if part is None:
            grid.add_row(*_beginning(shard, is_away=shard.id in table.shards_away))
            continue
        share = part.total_mass / table.total_mass if table.total_mass else 0.0
        per_s = part.rates.inserted_per_s, part.rates.sampled_per_s, part.rates.updated_per_s
        grid.add_row(*_beginning(shard), count_text(part.size), f"{share:.0%}", *map(count_text, per_s))
    yield grid


def away_text(stats: Stats) -> Iterator[Text]:
    """Say which servers are away, and what share of each table's mass is on them."""
    if stats.shards is None:
        return
    for shard in (shard for shard in stats.shards.in_use if shard.id in stats.shards_away):
        there = f"shard {shard.id} at {printable_text(shard.address)}"
        yield Text(f"{there} is away or has lost its tables: rows not counted", "red")
    for table in stats.tables.values():
        if table.mass_away:
            share = table.mass_away / (table.mass_away + table.total_mass)
            yield Text(f"{share:.0%} of the mass of {printable_text(table.name)} is away", "red")


def _beginning(shard: Shard, *, is_away: bool = False) -> tuple[Text, str, Text]:
    state = Text("away", "red") if is_away else Text(shard.state, FAINT)
    address = shortened_text(printable_text(shard.address), _ADDRESS)
    return Text(str(shard.id), f"bold {ACCENT}"), address, state


_FILL_WIDTH = 10
NARROW = 70
"""Minimum terminal width for panels side by side."""
_WIDE = 116
"""Minimum terminal width for additional columns."""


def table_list(descriptions: Sequence[TableDescription], server: str) -> RenderableType:
    """Render a list of a server's tables with their columns."""
    if not descriptions:
        return Text(f"{server} has no tables", FAINT)
    grid = grid_of("table", "backend", ">rows", ">of", ">row", "columns")
    for description in descriptions:
        grid.add_row(
            Text(printable_text(description.name), f"bold {ACCENT}"),
            printable_text(description.backend),
            count_text(description.size),
            count_text(description.capacity),
            bytes_text(description.row_bytes),
            Text("\n").join(_column(name, column) for name, column in _columns(description).items()),
        )
    return grid


def checkpoint_list(checkpoints: Sequence[Checkpoint], server: str) -> RenderableType:
    """Render a list of a server's checkpoints."""
    if not checkpoints:
        return Text(f"{server} has no checkpoints", FAINT)
    grid = grid_of("checkpoint", "taken", ">size", "tables")
    for checkpoint in checkpoints:
        grid.add_row(
            _checkpoint_name(checkpoint),
            f"{datetime.fromtimestamp(checkpoint.taken_s):%Y-%m-%d %H:%M:%S}" if checkpoint.taken_s else "",
            bytes_text(checkpoint.bytes),
            Text("\n").join(
                Text.assemble(printable_text(table.name), (f" {count_text(table.size)} rows", FAINT))
                for table in checkpoint.tables.values()
            ),
        )
    return grid


def _checkpoint_name(checkpoint: Checkpoint) -> Text:
    name = Text(printable_text(checkpoint.name), f"bold {ACCENT}")
    if checkpoint.damage:
        name.append(f"\ndamaged: {printable_text(checkpoint.damage)}", "not bold red")
    if checkpoint.missing:
        name.append(f"\nlacks shards {', '.join(map(str, checkpoint.missing))}", "not bold red")
    return name


def stats_view(
    stats: Stats, server: str, table: str | None, width: int, most: int | None = None, problem: str = ""
) -> RenderableType:
    """Render the statistics of a server: one table in detail, or a list of all tables.

    ``width`` is the terminal's width in characters. For one table, ``most`` limits the number of bars. For all tables,
    it limits the total number of waits, tables and methods. ``problem`` says why there are no newer statistics; empty
    if there is no problem.
    """
    header: list[RenderableType] = [server_line(stats, server)]
    if problem:
        header.append(Text(printable_text(f"no statistics: {problem}"), "red"))
    header += away_text(stats)
    if table is not None:
        name = Text(printable_text(table), f"bold {ACCENT}", overflow="fold")
        seen = stats.tables[table]
        return Group(
            *header, name, table_view(seen, most, is_narrow=width < NARROW), *shard_figures(seen, stats.shards)
        )
    tables, methods = list(stats.tables.values()), list(stats.server.methods.values())
    waits = [(table.name, wait) for table in tables for wait in table.waits]
    room = len(waits) + len(tables) + len(methods) if most is None else most
    shown_waits = min(len(waits), max(room // 4, room - len(tables) - len(methods)))
    room -= shown_waits
    shown_methods = min(len(methods), max(room // 2, room - len(tables)))
    shown_tables = min(len(tables), room - shown_methods)
    return Group(
        *header,
        Text("rates and latencies of the last minute" + ", some estimated" * bool(stats.servers), FAINT),
        *(wait_text(wait, name) for name, wait in waits[:shown_waits]),
        _left_out(len(waits) - shown_waits, "waits"),
        _table_figures(tables[:shown_tables], is_wide=width >= _WIDE),
        _left_out(len(tables) - shown_tables, "tables"),
        *server_figures(stats),
        method_figures(methods[:shown_methods]),
        _left_out(len(methods) - shown_methods, "methods"),
    )


def stats_screen(console: Console, stats: Stats, server: str, table: str | None, problem: str = "") -> RenderableType:
    """Render like `stats_view`, with as many waits, tables and methods (or bars) as fit into the terminal's height."""

    def view(most: int) -> RenderableType:
        return stats_view(stats, server, table, console.width, most, problem)

    def is_too_high(most: int) -> bool:
        return len(console.render_lines(view(most), pad=False)) > console.height

    return view(max(0, bisect_left(range(console.height), True, key=is_too_high) - 1))


def _left_out(count: int, what: str) -> Text:
    return Text(f"{count} more {what} do not fit into this terminal\n" if count else "", FAINT)


def server_line(stats: Stats, address: str, cpu_share: float | None = None) -> Text:
    """Say in one line how the server is doing; ``cpu_share`` is its current processor time per second, if known."""
    server = stats.server
    if stats.servers:
        address = f"{len(stats.servers)} servers"
    return Text.assemble(
        (address, f"bold {ACCENT}"),
        (f"  version {printable_text(server.version)}", FAINT),
        f"  up {duration_text(server.uptime_s)}",
        f"  memory {bytes_text(server.resident_bytes)}",
        f"  cpu {duration_text(server.cpu_s)}" if cpu_share is None else f"  cpu {cpu_share:.0%}",
    )


def _table_figures(tables: Iterable[TableStats], *, is_wide: bool) -> RenderableType:
    headings = ["table", "backend", ">rows", "filled", ">inserted/s", ">drawn/s", ">updated/s"]
    grid = grid_of(*headings, *([">stale", ">waiting", ">oldest", ">largest priority"] if is_wide else []))
    for table in tables:
        figures: list[RenderableType] = [
            Text(printable_text(table.name), f"bold {ACCENT}"),
            printable_text(table.table.backend),
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
    return grid if grid.row_count else Text("no tables", FAINT)


def method_figures(shown: Sequence[MethodStats]) -> RenderableType:
    """Render counts and latencies of methods as a list."""
    if not shown:
        return Text("no calls yet", FAINT)
    headings = ("method", ">answered", ">a second", ">failed", ">active", ">mean ms", ">p50 ms", ">p99 ms")
    grid = _FittedGrid(*headings, optional=(">mean ms", ">answered", ">p50 ms", ">active", ">failed"))
    for method in shown:
        grid.add_row(
            printable_text(method.method),
            count_text(method.calls),
            count_text(method.calls_per_s),
            Text(count_text(method.errors), "yellow" if method.errors else FAINT),
            count_text(method.active),
            *(f"{ms:.2f}" if ms else "-" for ms in (method.mean_ms, method.p50_ms, method.p99_ms)),
        )
    return grid


def _columns(description: TableDescription) -> Mapping[str, object]:
    return description.schema if description.steps is None else {**description.schema, **description.steps.derived}


def _column(name: str, column: object) -> Text:
    return Text.assemble(name, (f" {column}", FAINT))


def _fill(description: TableDescription, bar_width: int = _FILL_WIDTH) -> RenderableType:
    """Render the fill level: a bar and a percentage, or only the percentage if the bar has no width."""
    share = fill_share(description)
    percentage = Text(f"{share:.0%}".rjust(4), FAINT)
    if not bar_width:
        return percentage
    bar = ProgressBar(total=1.0, completed=share, width=bar_width, complete_style=ACCENT, finished_style=ACCENT)
    grid = Table.grid(padding=(0, 1))
    grid.add_row(bar, percentage)
    return grid


def stats_line(stats: Stats) -> str:
    """Summarize the statistics of a server and its tables in one line."""
    server = f"up {duration_text(stats.server.uptime_s)}, {bytes_text(stats.server.resident_bytes)}"
    return "; ".join([server, *(_table_line(name, table) for name, table in stats.tables.items())])


def _table_line(name: str, table: TableStats) -> str:
    rates = table.rates
    figures = (
        f"{name} {table.table.size:,} of {table.table.capacity:,} rows, per s: {number_text(rates.inserted_per_s)} "
        f"inserted, {number_text(rates.sampled_per_s)} sampled, {number_text(rates.updated_per_s)} updated"
    )
    return ", ".join([figures, *map(str, table.waits)])
