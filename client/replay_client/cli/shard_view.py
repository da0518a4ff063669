"""Renders the servers of a service, and the shards of a table, for the terminal: one line each, in 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from replay_client.cli.grid import ACCENT, FAINT, grid_of
from replay_client.cli.units import bytes_text, count_text, duration_text, printable_text, shortened_text
from replay_client.results.shards import Shard, ShardMap
from replay_client.results.stats import Stats, TableStats

_ADDRESS = 24
"""Maximum width of an address in lists of figures."""


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
    grid = grid_of(">shard", "server", "state", ">up", ">memory", ">cpu", ">rows")
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
    grid = grid_of(">shard", "server", "state", ">rows", ">mass", ">inserted/s", ">drawn/s", ">updated/s")
    for shard in shards.in_use:
        part = table.shards.get(shard.id)
        if part is None:
            grid.add_row(*_beginning(shard, is_away=shard.id in table.shards_away))
            continue
        share = part.total_mass / table.total_mass if table.total_mass else 0.0
        rates = part.rates.inserted_per_s, part.rates.sampled_per_s, part.rates.updated_per_s
        grid.add_row(*_beginning(shard), count_text(part.size), f"{share:.0%}", *map(count_text, rates))
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
