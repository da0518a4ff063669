"""What the live page shows of the servers of a service, and of the shards of a table, as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from replay_proto.merged_stats import known_lost_rows, newest_reports
from replay_proto.v1 import replay_pb2
from replay_proto.waits import duration_text

from replay_server.http.histograms import short
from replay_server.http.page_figures import rate_figures
from replay_server.http.shards.peer import Peer

_NO_RATES = dict.fromkeys(rate_figures(replay_pb2.Rates()))


def server_figures(shards: Sequence[replay_pb2.Shard], peers: Mapping[int, Peer]) -> list[dict[str, Any]]:
    """Return the figures of each server."""
    return [_server(shard, peers[shard.id]) for shard in shards]


def problems(shards: Sequence[replay_pb2.Shard], peers: Mapping[int, Peer]) -> list[str]:
    """Say which servers are away, for how long and why."""
    now = time.monotonic()
    return [
        f"shard {shard.id} at {shard.address} has been away for {duration_text(now - away.since_s)} ({away.reason}): "
        "its rows are not counted"
        for shard in shards
        if (away := peers[shard.id].away) is not None
    ]


def shard_lines(
    whole: replay_pb2.TableStats,
    parts: Mapping[int, replay_pb2.TableStats],
    shards: replay_pb2.ShardMap,
    peers: Mapping[int, Peer],
) -> list[dict[str, Any]]:
    """Return the figures of each shard of a table, and of lost shards that had rows.

    Args:
        whole: statistics of the whole table.
        parts: statistics of its shards, by id.
        shards: all servers.
        peers: the servers in use, by the id of their shard.
    """
    reports = {report.shard_id: report for report in whole.reports}
    lines = []
    for shard in shards.shards:
        lost = known_lost_rows(shard, list(parts.values()), reports.get(shard.id))
        if shard.id in peers or lost:
            lines.append(_line(shard, parts.get(shard.id), whole.total_mass, lost, peers.get(shard.id)))
    return lines


def mass_away(whole: replay_pb2.TableStats, peers: Mapping[int, Peer]) -> float:
    """Return the fraction of a table's mass that was in shards that are away, as far as it is known."""
    reported = ((each.shard_id, each) for each in whole.reports if each.total_mass)  # 0: unknown
    reports = newest_reports([*reported, *_last_seen(whole, peers)])
    mass = sum(reports[shard_id].total_mass for shard_id, peer in peers.items() if peer.away and shard_id in reports)
    return mass / (mass + whole.total_mass) if mass else 0.0


def _last_seen(whole: replay_pb2.TableStats, peers: Mapping[int, Peer]) -> Iterator[tuple[int, replay_pb2.ShardReport]]:
    """Yield what this server itself has last seen of shards, with their ids."""
    for shard_id, peer in peers.items():
        part = peer.tables.get(whole.table.config.name)
        if part is not None:
            yield shard_id, replay_pb2.ShardReport(inserted=part.table.inserted, total_mass=part.total_mass)


def _server(shard: replay_pb2.Shard, peer: Peer) -> dict[str, Any]:
    server = None if peer.answer is None else peer.answer.server
    return {
        **_beginning(shard, peer),
        "uptime_s": None if server is None else short(server.uptime_s),
        "resident_bytes": None if server is None else server.resident_bytes,
        "version": None if server is None else server.version,
    }


def _line(
    shard: replay_pb2.Shard, part: replay_pb2.TableStats | None, total_mass: float, lost: int, peer: Peer | None
) -> dict[str, Any]:
    if part is None:
        return {**_beginning(shard, peer), "rows": lost or None, "mass": None, **_NO_RATES}
    share = part.total_mass / total_mass if total_mass else 0.0
    return {**_beginning(shard, peer), "rows": part.table.size, "mass": short(share), **rate_figures(part.rates)}


def _beginning(shard: replay_pb2.Shard, peer: Peer | None) -> dict[str, Any]:
    state = replay_pb2.ShardState.Name(shard.state).removeprefix("SHARD_STATE_").lower()
    return {"id": shard.id, "address": shard.address, "state": state if peer is None or not peer.away else "away"}
