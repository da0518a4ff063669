"""Handler of Stats."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import numpy as np
import psutil
from replay_proto.access.tokens import Right
from replay_proto.framing import Framed
from replay_proto.v1 import replay_pb2

from replay_server import __version__
from replay_server.catalog import Catalog
from replay_server.flow.waits import Wait
from replay_server.rpc.call import Call
from replay_server.rpc.endpoint import AnyEndpoint
from replay_server.rpc.handlers.tables import describe
from replay_server.rpc.method_figures import MethodFigures
from replay_server.table.gates import LimiterGate
from replay_server.table.inspection import some_priorities
from replay_server.table.rates import WINDOW_S
from replay_server.table.table import Table

_FRACTIONS: Final = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
"""Fractions of the quantiles."""
_MS_PER_S = 1000.0


class StatsHandler:
    """Reports statistics without scanning all rows."""

    def __init__(self, catalog: Catalog, endpoints: Mapping[str, AnyEndpoint]) -> None:
        self._catalog = catalog
        self._endpoints = endpoints
        self._began = time.monotonic()
        self._process = psutil.Process()
        self._random = np.random.default_rng()

    async def stats(self, request: Framed[replay_pb2.StatsRequest], call: Call) -> bytes:
        """Report on the server, and on the named table or, if none is named, on all tables that the caller may read."""
        if request.head.table:
            tables = [self._table(self._catalog.find(request.head.table))]
        else:
            may_read = partial(call.caller.may, Right.READ)
            tables = [self._table(table) async for table in self._catalog.in_turns() if may_read(table.name)]
        return replay_pb2.StatsResponse(
            server=self._server(), tables=tables, shards=self._catalog.shards.to_proto()
        ).SerializeToString()

    def _server(self) -> replay_pb2.ServerStats:
        with self._process.oneshot():
            times = self._process.cpu_times()
            memory = self._process.memory_info()
        return replay_pb2.ServerStats(
            version=__version__,
            uptime_s=time.monotonic() - self._began,
            resident_bytes=memory.rss,
            cpu_s=times.user + times.system,
            methods=[
                _method(name, endpoint.figures)
                for name, endpoint in sorted(self._endpoints.items())
                if endpoint.figures.is_used
            ],
        )

    def _table(self, table: Table) -> replay_pb2.TableStats:
        stats = table_stats(table, self._catalog.waits(table))
        stats.priorities.extend(self._priority_quantiles(table))
        stats.ages_s.extend(_age_quantiles(table))
        return stats

    def _priority_quantiles(self, table: Table) -> list[replay_pb2.Quantile]:
        priorities = some_priorities(table, self._random)
        if not len(priorities):
            return []
        values = np.quantile(priorities, _FRACTIONS)
        # Use the exact minimum and maximum.
        exact = {0.0: table.smallest_priority, 1.0: table.largest_priority}
        return _quantiles([exact.get(each, value) for each, value in zip(_FRACTIONS, values, strict=True)])


def table_stats(table: Table, waits: Iterable[Wait]) -> replay_pb2.TableStats:
    """Return the statistics of a table, without quantiles, which cost more than everything else."""
    figures = table.figures.now()
    return replay_pb2.TableStats(
        table=describe(table),
        bytes=table.directory.reserved_bytes,
        evicted=table.oldest,
        sampled=figures.sampled,
        updated=figures.updated,
        stale=figures.stale,
        repeated_inserts=figures.repeated_inserts,
        rates=replay_pb2.Rates(
            window_s=WINDOW_S,
            inserted_per_s=figures.inserted_per_s,
            sampled_per_s=figures.sampled_per_s,
            updated_per_s=figures.updated_per_s,
        ),
        waiting=figures.waiting,
        waiting_inserts=figures.waiting_inserts,
        waited=figures.waited,
        waits=map(_wait, waits),
        lost=table.directory.lost,
        unsynced=table.directory.unsynced,
        failed_syncs=figures.failed_syncs,
        rate_limiter=_limiter(table),
        steps=_steps(table),
        sampled_same_host=figures.copied_by_clients,
        overtaken=figures.overtaken_copies,
        batches=figures.batches,
        batches_ahead=figures.batches_ahead,
        total_mass=table.total_mass,
        largest_priority=table.largest_priority,
        smallest_priority=table.smallest_priority,
        times_sampled=[
            replay_pb2.TimesSampled(at_least=at_least, at_most=at_most, rows=rows)
            for at_least, at_most, rows in figures.times_sampled
        ],
        reports=table.reports.values(),
    )


def _steps(table: Table) -> replay_pb2.StepStats | None:
    return None if table.step_counts is None else replay_pb2.StepStats(**table.step_counts._asdict())


def _limiter(table: Table) -> replay_pb2.LimiterStats | None:
    if table.config.rate_limit is None or not isinstance(table.gate, LimiterGate):
        return None
    counters = table.gate.counters
    return replay_pb2.LimiterStats(
        inserted=counters.inserted, sampled=counters.sampled, difference=table.gate.difference
    )


def _wait(wait: Wait) -> replay_pb2.WaitStats:
    return replay_pb2.WaitStats(
        waited_for=wait.lack.waited_for,
        calls=wait.calls,
        have=wait.lack.have,
        needed=wait.lack.needed,
        waited_s=wait.waited_s,
        expected_s=wait.expected_s,
    )


def _age_quantiles(table: Table) -> list[replay_pb2.Quantile]:
    if table.size == 0:
        return []
    newest = table.inserted - 1
    keys = newest - (np.array(_FRACTIONS) * (table.size - 1)).astype(np.int64)
    return _quantiles(table.figures.ages_s(keys).tolist())


def _quantiles(values: Iterable[float]) -> list[replay_pb2.Quantile]:
    pairs = zip(_FRACTIONS, values, strict=True)
    return [replay_pb2.Quantile(fraction=fraction, value=value) for fraction, value in pairs]


def _method(name: str, figures: MethodFigures) -> replay_pb2.MethodStats:
    recent = figures.recent()
    return replay_pb2.MethodStats(
        method=name,
        calls=figures.calls,
        errors=figures.errors,
        active=figures.active,
        calls_per_s=recent.calls_per_s,
        mean_ms=recent.mean_s * _MS_PER_S,
        p50_ms=recent.quantile_s(0.5) * _MS_PER_S,
        p99_ms=recent.quantile_s(0.99) * _MS_PER_S,
    )
