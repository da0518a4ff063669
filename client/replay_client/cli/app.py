"""The subcommands of `replay`, their options and their exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat
from cyclopts.validators import Number
from replay_proto.command_line import EXIT_USAGE, new_app, run_app
from rich.console import Console, RenderableType
from rich.prompt import Confirm

from replay_client.cli import checkpoints, copy, export_import, lists, shards
from replay_client.cli.distribution import Distributions
from replay_client.cli.formats import printable_text
from replay_client.cli.inspect_view import Inspected, inspect_screen, inspect_view
from replay_client.cli.options import (
    DEFAULT_SERVER,
    FAILURE,
    SHORTEST_TIMEOUT_S,
    TIMEOUT_S,
    Json,
    Server,
    TableName,
    client_of,
    print_json,
    show,
)
from replay_client.cli.plain import plain_description, plain_inspection, plain_stats
from replay_client.cli.watch import Watched, polls
from replay_client.cli.watch import watch as watch_it
from replay_client.draws import DEFAULT_BETA
from replay_client.errors import ReplayError, TableNotFoundError
from replay_client.results.stats import Stats
from replay_client.sync.client import ReplayClient

app = new_app(
    "replay",
    "Inspect, copy, export, empty, drop and checkpoint the tables of a replay server. Set REPLAY_TOKEN if the server "
    "requires a token, and REPLAY_TLS_CA, REPLAY_TLS_CERT and REPLAY_TLS_KEY for TLS.",
)
app.command(checkpoints.app)
app.command(shards.app)
app.command(copy.copy)
app.command(export_import.export)
app.command(export_import.import_table, name="import")

MaybeTableName = Annotated[str | None, Parameter(help="Name of a table; default: all.")]
Yes = Annotated[bool, Parameter(alias="-y", negative="", help="Do not ask for confirmation.")]
Watch = Annotated[bool, Parameter(alias="-w", negative="", help="Refresh until Ctrl-C.")]
Interval = Annotated[
    float, Parameter(alias="-n", validator=Number(gte=0.1, lte=86_400), help="Seconds between refreshes with --watch.")
]
WatchedJson = Annotated[
    bool, Parameter(name="--json", negative="", help="Print JSON; with --watch, one object per line.")
]
Beta = Annotated[NonNegativeFloat, Parameter(alias="-b", help="Exponent of the importance-sampling weights.")]
LargestRows = Annotated[
    int | None,
    Parameter(
        alias="-r",
        validator=Number(gte=1, lte=100),
        help="How many of the rows with the largest priorities to show; with --watch, as many of them as fit. Default: "
        "10, or in a terminal as much as fits.",
    ),
]
Png = Annotated[Path | None, Parameter(help="Also draw a picture into this file.")]

LARGEST = 10
"""Rows with the largest priorities that are read by default."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command, with the arguments of this process if none are given, and return its exit code."""
    try:
        run_app(app, arguments)
    except ReplayError as error:
        print(f"replay: {printable_text(error.message)}", file=sys.stderr)
        return FAILURE
    return 0


@app.command
def tables(*, server: Server = DEFAULT_SERVER, as_json: Json = False) -> None:
    """List the tables of a server."""
    with client_of(server) as client:
        descriptions = client.tables()
    if as_json:
        print_json([plain_description(description) for description in descriptions])
    else:
        show(lists.table_list(descriptions, server), Console())


@app.command
def stats(
    table: MaybeTableName = None,
    /,
    *,
    server: Server = DEFAULT_SERVER,
    watch: Watch = False,
    as_json: WatchedJson = False,
    interval: Interval = 1.0,
) -> None:
    """Show statistics of a server or of one table."""
    with client_of(server, timeout_s=_timeout_s(interval, is_watching=watch)) as client:
        if watch:
            watch_it(
                Watched(
                    poll=lambda: _stats_of(client, table),
                    screen=lambda console, seen, problem: lists.stats_screen(console, seen, server, table, problem),
                    line=lists.stats_line,
                    plain=plain_stats,
                ),
                interval,
                as_json=as_json,
            )
        elif as_json:
            print_json(plain_stats(_stats_of(client, table)))
        else:
            console = Console()
            show(lists.stats_view(_stats_of(client, table), server, table, console.width), console)


@app.command
def top(*, server: Server = DEFAULT_SERVER, interval: Interval = 1.0) -> None:
    """Watch the rates of all tables, the waiting calls and the latencies; keys sort the tables and open one."""
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):  # textual draws on stderr
        print("replay: top needs a terminal; for a pipe or file, use `replay stats --watch`", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    from replay_client.cli.top.app import Top  # textual takes half a second to import

    with client_of(server, timeout_s=_timeout_s(interval, is_watching=True)) as client:
        seen = polls(client.stats, interval)
        first = next(seen)
        assert isinstance(first, Stats)  # the first request raises errors
        Top(first, seen, lambda name: _inspected(client, name, DEFAULT_BETA, LARGEST), server).run()


@app.command
def inspect(
    table: TableName,
    /,
    *,
    server: Server = DEFAULT_SERVER,
    beta: Beta = DEFAULT_BETA,
    rows: LargestRows = None,
    png: Png = None,
    watch: Watch = False,
    as_json: WatchedJson = False,
    interval: Interval = 1.0,
) -> None:
    """Show a table's distributions (priority, probability, age, draws, weight) and rows of largest priority."""
    if watch and png is not None:
        print("replay: --png draws one picture; leave out --watch", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    with client_of(server, timeout_s=_timeout_s(interval, is_watching=watch)) as client:
        poll = partial(_inspected, client, table, beta, rows or LARGEST)
        if watch:
            watch_it(Watched(poll, inspect_screen, str, plain_inspection), interval, as_json=as_json)
            return
        seen = poll()
    if png is not None:
        _draw(seen.distributions(), png)
    if as_json:
        print_json(plain_inspection(seen))
    else:
        console = Console()
        whole = inspect_view(seen, console.width)
        show(whole if rows or not console.is_terminal else _fitting(seen, console), console)


@app.command
def drop(table: TableName, /, *, server: Server = DEFAULT_SERVER, yes: Yes = False) -> None:
    """Drop a table and its rows."""
    with client_of(server) as client:
        if yes:
            client.drop_table(table)
        else:
            handle = client.table(table)
            _confirm(f"Drop table {table!r} with its {handle.describe().size:,} rows?")
            handle.drop()
    print(f"table {table} dropped")


@app.command
def reset(table: TableName, /, *, server: Server = DEFAULT_SERVER, yes: Yes = False) -> None:
    """Remove all rows of a table."""
    with client_of(server) as client:
        handle = client.table(table)
        if not yes:
            _confirm(f"Remove all {handle.describe().size:,} rows of table {table!r}?")
        removed = handle.reset()
    print(f"removed {removed:,} rows of table {table}")


def _confirm(question: str) -> None:
    """Exit unless the user says yes."""
    try:
        is_wanted = Confirm.ask(question, default=False)
    except EOFError:
        print()
        print("replay: expected y or n, got no answer; to continue without one, pass --yes", file=sys.stderr)
        is_wanted = False
    if not is_wanted:
        sys.exit(FAILURE)


def _fitting(seen: Inspected, console: Console) -> RenderableType:
    """Render what fits into the terminal above the next prompt."""
    return inspect_screen(Console(width=console.width, height=console.height - 1), seen, "")


def _stats_of(client: ReplayClient, table: str | None) -> Stats:
    """Fetch the statistics of the server and of one table, or of all tables."""
    stats = client.stats()
    if table is None:
        return stats
    if table not in stats.tables:
        known = ", ".join(stats.tables) or "none"
        raise TableNotFoundError(f"there is no table {table!r}; existing tables: {known}")
    return replace(stats, tables={table: stats.tables[table]})


def _inspected(client: ReplayClient, name: str, beta: float, rows: int) -> Inspected:
    """Inspect a table and read its ``rows`` rows with the largest priorities."""
    table = client.table(name)
    inspection = table.inspect(largest=rows)
    return Inspected(inspection, table.read(inspection.largest.row_keys), beta)


def _timeout_s(interval_s: float, *, is_watching: bool) -> float:
    return min(TIMEOUT_S, max(interval_s, SHORTEST_TIMEOUT_S)) if is_watching else TIMEOUT_S


def _draw(found: Distributions, path: Path) -> None:
    from replay_client.cli.inspect_picture import draw_picture  # matplotlib takes a second to import

    try:
        draw_picture(found, path)
    except OSError as error:
        print(f"replay: the picture cannot be written: {error}", file=sys.stderr)
        sys.exit(FAILURE)
