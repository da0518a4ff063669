"""Joins the statistics of several servers, and of the shards of their tables, into totals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from replay_proto import merged_stats as messages
from replay_proto.v1 import replay_pb2

from replay_client.results.shards import ShardMap
from replay_client.results.stats import MethodStats, ServerStats, Stats, TableStats


def merged_stats(shards: ShardMap, found: Mapping[int, replay_pb2.StatsResponse]) -> Stats:
    """Join the statistics of the servers that answered.

    Args:
        shards: all servers.
        found: statistics by the id of the shard, at least one.
    """
    tables: dict[str, dict[int, replay_pb2.TableStats]] = {}
    for shard_id, answer in found.items():
        for table in answer.tables:
            tables.setdefault(table.table.config.name, {})[shard_id] = table
    servers = {shard_id: ServerStats.from_proto(answer.server) for shard_id, answer in found.items()}
    return Stats(
        server=_merged_server(list(servers.values())),
        tables={name: merged_table_stats(parts, shards) for name, parts in sorted(tables.items())},
        shards=shards,
        servers=servers,
    )


def merged_table_stats(found: Mapping[int, replay_pb2.TableStats], shards: ShardMap) -> TableStats:
    """Join the statistics of a table's shards.

    Args:
        found: statistics of each shard by id, at least one.
        shards: all servers.
    """
    whole = TableStats.from_proto(messages.merged_table_stats(found, shards.to_proto()))
    away = [shard.id for shard in shards.in_use if shard.id not in found]
    return replace(
        whole,
        shards={shard_id: TableStats.from_proto(part) for shard_id, part in found.items()},
        shards_away=tuple(away),
        mass_away=sum(whole.reports[shard_id].total_mass for shard_id in away if shard_id in whole.reports),
    )


def _merged_server(servers: Sequence[ServerStats]) -> ServerStats:
    methods: dict[str, list[MethodStats]] = {}
    for method in (method for server in servers for method in server.methods.values()):
        methods.setdefault(method.method, []).append(method)
    return ServerStats(
        version=" and ".join(sorted({server.version for server in servers})),
        uptime_s=min(server.uptime_s for server in servers),
        resident_bytes=sum(server.resident_bytes for server in servers),
        cpu_s=sum(server.cpu_s for server in servers),
        methods={name: _merged_method(same) for name, same in sorted(methods.items())},
    )


def _merged_method(same: Sequence[MethodStats]) -> MethodStats:
    """Join the figures of one method on several servers.

    Mean and median latencies are averaged, weighted by calls per second. The 99th percentile is the largest of all.
    """
    per_s = sum(method.calls_per_s for method in same)

    def mean(values: Iterable[float]) -> float:
        total = sum(value * method.calls_per_s for value, method in zip(values, same, strict=True))
        return total / per_s if per_s else 0.0

    return MethodStats(
        method=same[0].method,
        calls=sum(method.calls for method in same),
        errors=sum(method.errors for method in same),
        active=sum(method.active for method in same),
        calls_per_s=per_s,
        mean_ms=mean(method.mean_ms for method in same),
        p50_ms=mean(method.p50_ms for method in same),
        p99_ms=max(method.p99_ms for method in same),
    )
