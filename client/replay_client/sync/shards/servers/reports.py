"""What a client has learned about shards from its own inserts, and has not yet told the other servers.

    reports = Reports()
    reports.add(roster, shard_id, report_of(description, inserted))     # after each insert; sends nothing itself
    reports.send()                                                      # before the client is closed

If a shard is given up, `Stats` counts its rows from these reports. A thread sends them at most once every `REPORT_S`
seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from replay_client.results.description import TableDescription
from replay_client.results.stats import ShardReport

REPORT_S: Final = 1.0
"""Seconds from an insert until the other servers are told of it, together with all inserts in between."""


class Teller(Protocol):
    """Reports the last known states of a table's shards to its servers. `Roster` implements this."""

    def tell(self, reports: Mapping[int, ShardReport]) -> None:
        """Tell each server what was heard of the others' shards."""


class Reports:
    """See the module. Thread-safe."""

    def __init__(self) -> None:
        self._unsent: dict[Teller, dict[int, ShardReport]] = {}
        self._guard = threading.Lock()

    def __reduce__(self) -> tuple[Callable[[], Reports], tuple[()]]:
        return Reports, ()

    def add(self, table: Teller, shard_id: int, report: ShardReport) -> None:
        """Send a report soon. If several reports of a shard wait, only the newest one is sent."""
        with self._guard:
            if not self._unsent:
                timer = threading.Timer(REPORT_S, self.send)
                timer.daemon = True
                timer.start()
            of_table = self._unsent.setdefault(table, {})
            if shard_id not in of_table or of_table[shard_id].inserted < report.inserted:
                of_table[shard_id] = report

    def send(self) -> None:
        """Send all reports now, and wait until they have arrived."""
        with self._guard:
            unsent, self._unsent = self._unsent, {}
        for table, reports in unsent.items():
            table.tell(reports)


def report_of(opened: TableDescription, inserted: int) -> ShardReport:
    """Return a report of a shard, from its description when it was opened and the current number of inserted rows."""
    size = min(opened.capacity, opened.size + inserted - opened.inserted)
    return ShardReport(inserted, size, 0.0)
