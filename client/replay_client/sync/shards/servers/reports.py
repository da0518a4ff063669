"""What a client has learned about shards from its own inserts; rows lost with a server.

    reports = Reports()
    reports.add(roster, shard_id, report_of(description, inserted))     # after each insert; sends nothing itself
    reports.send()                                                      # before the client is closed

If a shard is given up, `Stats` counts its rows from these reports. A thread sends them at most once every `REPORT_S`
seconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from replay_proto.merged_stats import newest_reports

from replay_client._operations import server as operations
from replay_client._transport.session import Session
from replay_client.errors import PermissionDeniedError
from replay_client.results.description import TableDescription
from replay_client.results.shards import LostRows
from replay_client.results.stats import ShardReport, TableStats
from replay_client.sync.shards.servers.asking import AWAY, ask_all

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


log = logging.getLogger(__name__)


def rows_lost_with(shard_id: int, sessions: Mapping[int, Session]) -> tuple[LostRows, ...]:
    """Return the rows of each table that will be lost with a shard, and log their number.

    Args:
        shard_id: the shard.
        sessions: sessions to all servers in use, by shard.
    """
    try:
        found = ask_all(sessions, operations.stats)
    except AWAY:
        return ()
    except PermissionDeniedError as error:  # a token may have the right to give up a server, but not to read it
        log.warning("the rows lost with shard %d are not in the shard map: %s", shard_id, error)
        return ()
    own = found.pop(shard_id, None)
    others: dict[str, list[TableStats]] = {}
    for stats in found.values():
        for name, table in stats.tables.items():
            others.setdefault(name, []).append(table)
    lost = []
    for name, parts in sorted(others.items()):
        last = newest_reports(pair for part in parts for pair in part.reports.items()).get(shard_id)
        if own is not None and own.shards is not None and name in own.tables:  # the server still answers
            last = ShardReport(own.tables[name].inserted, own.tables[name].size, 0.0)
        if last is None:
            log.warning("it is unknown how many rows of table %r are lost with shard %d: nobody said", name, shard_id)
        else:
            uids = tuple(part.table.uid for part in parts)
            lost.append(LostRows(name, uids, last.size, last.inserted))
            log.warning("table %r lost %d rows with shard %d", name, last.size, shard_id)
    return tuple(lost)
