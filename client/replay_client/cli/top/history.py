"""Rates between successive statistics of a server, for sparklines.

history.add(stats)
history.tables["cartpole"].inserted             # rows per second, oldest first
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from replay_client.results.stats import ServerStats, Stats, TableStats

_POINTS = 200
"""Number of rates to keep: more than a terminal has room for."""


def _rates() -> deque[float]:
    return deque(maxlen=_POINTS)


@dataclass
class TableHistory:
    """Rows per second of a table between successive statistics, oldest first."""

    inserted: deque[float] = field(default_factory=_rates)
    """Rows inserted."""
    drawn: deque[float] = field(default_factory=_rates)
    """Rows drawn."""
    updated: deque[float] = field(default_factory=_rates)
    """Priorities set."""

    def add(self, before: TableStats, now: TableStats, elapsed_s: float) -> None:
        """Append the rates between two statistics."""
        self.inserted.append((now.inserted - before.inserted) / elapsed_s)
        self.drawn.append((now.sampled - before.sampled) / elapsed_s)
        self.updated.append((now.updated - before.updated) / elapsed_s)


class History:
    """The recent rates of a server and its tables. They start again if the server restarts or a table is replaced."""

    def __init__(self) -> None:
        """Start without rates."""
        self._tables: dict[str, TableHistory] = {}
        self._last: Stats | None = None
        self.cpu_share: float | None = None
        """Processor time per second of the server between its last two statistics; None if there are no two yet."""

    @property
    def tables(self) -> Mapping[str, TableHistory]:
        """Histories of the tables in the last statistics, by name."""
        return self._tables

    def add(self, stats: Stats) -> None:
        """Append the rates since the last call."""
        last, self._last = self._last, stats
        if last is not None and stats.servers.keys() != last.servers.keys():  # sums over different servers
            self._tables = {name: self._tables.get(name, TableHistory()) for name in stats.tables}
            return
        if last is None or _is_another_process(last.server, stats.server):
            self._tables = {name: TableHistory() for name in stats.tables}
            self.cpu_share = None
            return
        elapsed_s = stats.server.uptime_s - last.server.uptime_s
        self.cpu_share = (stats.server.cpu_s - last.server.cpu_s) / elapsed_s
        histories = self._tables
        self._tables = {}
        for name, table in stats.tables.items():
            before = last.tables.get(name)
            if before is None or before.table.uid != table.table.uid:
                self._tables[name] = TableHistory()
                continue
            self._tables[name] = histories[name]
            self._tables[name].add(before, table, elapsed_s)


def _is_another_process(before: ServerStats, now: ServerStats) -> bool:
    return now.uptime_s <= before.uptime_s or now.cpu_s < before.cpu_s
