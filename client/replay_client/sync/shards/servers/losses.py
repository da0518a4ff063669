"""Counts the rows lost with a server that is given up, from its own statistics or from clients' reports."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from replay_proto.merged_stats import newest_reports

from replay_client._operations import server as operations
from replay_client._transport.server_link import ServerLink
from replay_client.errors import PermissionDeniedError
from replay_client.results.shards import LostRows
from replay_client.results.stats import ShardReport, TableStats
from replay_client.sync.shards.servers.asking import AWAY, ask_all

log = logging.getLogger(__name__)


def rows_lost_with(shard_id: int, links: Mapping[int, ServerLink]) -> tuple[LostRows, ...]:
    """Return the rows of each table that will be lost with a shard, and log their number.

    Args:
        shard_id: the shard.
        links: links to all servers in use, by shard.
    """
    try:
        found = ask_all(links, operations.stats)
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
