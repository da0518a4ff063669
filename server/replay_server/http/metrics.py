"""Metrics in Prometheus's text format, made from a view of the server.

The metrics of RPCs have the same labels as those of common gRPC interceptors. `table` is the only label whose values
callers choose. Its cardinality is bounded, because the number of tables is limited, and dropped tables disappear.
"""

from __future__ import annotations

import asyncio
import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from grpc import StatusCode
from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from replay_server import __version__
from replay_server.files.standard_error import STANDARD_ERROR
from replay_server.flow.background import Loop
from replay_server.http.view import ServerView, TableView
from replay_server.rpc.endpoint import AnyEndpoint
from replay_server.rpc.endpoints import SERVICE
from replay_server.table.table_figures import Waits

_OF_TABLES: Final = ("table",)
_OF_METHODS: Final = ("grpc_type", "grpc_service", "grpc_method")
_PROCESS: Final = ProcessCollector(registry=None)
_Read = Callable[[TableView], float | None]
"""Reads a figure of a table; None if the table has no such figure."""

_GAUGES: Final[Sequence[tuple[str, str, _Read]]] = (
    ("replay_table_rows", "Live rows.", lambda table: table.rows),
    ("replay_table_capacity_rows", "Maximum number of live rows.", lambda table: table.capacity),
    ("replay_table_drawable_rows", "Live rows that can be drawn.", lambda table: table.drawable),
    ("replay_table_bytes", "Bytes reserved so far for the table's files.", lambda table: table.reserved_bytes),
    ("replay_unsynced_rows", "Rows that a power loss would lose.", lambda table: table.unsynced),
    ("replay_lost_rows", "Rows lost to power losses since the table was created.", lambda table: table.lost),
    (
        "replay_table_pending_rows",
        "In tables of steps: rows that wait for later steps.",
        lambda table: table.steps and table.steps.pending,
    ),
    (
        "replay_table_broken_rows",
        "In tables of steps: rows whose earlier steps are gone.",
        lambda table: table.steps and table.steps.broken,
    ),
    (
        "replay_limiter_difference",
        "Rate limiter: inserted rows times samples_per_insert, minus drawn rows.",
        lambda table: table.limiter and table.limiter.difference,
    ),
    (
        "replay_limiter_difference_min",
        "Its lower bound, below which draws wait.",
        lambda table: table.limiter and table.limiter.least,
    ),
    (
        "replay_limiter_difference_max",
        "Its upper bound, above which inserts wait.",
        lambda table: table.limiter and table.limiter.most,
    ),
)
_COUNTERS: Final[Sequence[tuple[str, str, _Read]]] = (
    ("replay_rows_inserted", "Rows inserted since the table was created.", lambda table: table.inserted),
    ("replay_inserts_repeated", "Retried inserts that had been applied.", lambda table: table.figures.repeated_inserts),
    ("replay_priorities_updated", "Priorities set by updates.", lambda table: table.figures.updated),
    ("replay_updates_stale", "Keys in updates whose rows were gone.", lambda table: table.figures.stale),
    (
        "replay_copies_overtaken",
        "Batches that clients on this host asked for again, because inserts overwrote rows during the copy.",
        lambda table: table.figures.overtaken_copies,
    ),
    ("replay_failed_syncs", "Failed syncs of the table to disk.", lambda table: table.figures.failed_syncs),
    (
        "replay_table_lost_rows",
        "In tables of steps: rows that were evicted before their later steps came.",
        lambda table: table.steps and table.steps.lost,
    ),
)


class _One(Collector):
    """A collector of a single metric. The library cannot render a metric without a collector."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


async def render(view: ServerView) -> bytes:
    """Render all metrics. Other calls run between two metrics."""
    parts = []
    for metric in metrics(view):
        parts.append(generate_latest(_One(metric)))
        await asyncio.sleep(0)
    return b"".join(parts)


def metrics(view: ServerView) -> Iterator[Metric]:
    """Yield all metrics, with their samples."""
    build = InfoMetricFamily("replay_build", "Version of the server and of Python.")
    build.add_metric((), {"version": __version__, "python": platform.python_version()})
    yield build
    yield GaugeMetricFamily(
        "replay_storage_free_bytes", "Free bytes of the tables' file system.", view.storage.free_bytes
    )
    yield GaugeMetricFamily("replay_storage_size_bytes", "Size of the tables' file system.", view.storage.size_bytes)
    if view.memory is not None:
        yield GaugeMetricFamily(
            "replay_memory_limit_bytes", "Memory that the server's cgroup allows.", view.memory.limit_bytes
        )
        yield GaugeMetricFamily(
            "replay_memory_used_bytes",
            "Memory of the server's cgroup in use, with files in memory, without the page cache of disks.",
            view.memory.used_bytes,
        )
    yield CounterMetricFamily(
        "replay_connections_refused", "gRPC connections over --max-connections.", view.connections_refused
    )
    yield CounterMetricFamily(
        "replay_log_lines_dropped",
        "Lines of the log that were dropped, because standard error could not be written, or not fast enough.",
        STANDARD_ERROR.lines_dropped,
    )
    yield from _loops(view.loops)
    yield from _PROCESS.collect()
    yield from _of_methods(view.endpoints.items())
    yield from _of_tables(view.tables)


def _loops(loops: Mapping[str, Loop]) -> Iterator[Metric]:
    failures = CounterMetricFamily(
        "replay_background_failures", "Failures of what the server does again and again.", labels=("loop",)
    )
    failing = GaugeMetricFamily(
        "replay_background_failing", "1 if this has failed several times in a row, else 0.", labels=("loop",)
    )
    for name, loop in loops.items():
        failures.add_metric((name,), loop.failures)
        failing.add_metric((name,), loop.keeps_failing)
    yield failures
    yield failing


def _of_tables(tables: Sequence[TableView]) -> Iterator[Metric]:
    for kind, specified in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        for name, meaning, read in specified:
            metric = kind(name, meaning, labels=_OF_TABLES)
            for table in tables:
                value = read(table)
                if value is not None:
                    metric.add_metric((table.name,), value)
            yield metric
    yield _sampled(tables)
    yield _staleness(tables)
    yield from _waits(tables)


def _sampled(tables: Sequence[TableView]) -> Metric:
    metric = CounterMetricFamily(
        "replay_rows_sampled",
        "Rows drawn. path: reply (the reply had the rows), files (the client copied them from the table's files).",
        labels=("table", "path"),
    )
    for table in tables:
        copied = table.figures.copied_by_clients
        metric.add_metric((table.name, "reply"), table.figures.sampled - copied)
        metric.add_metric((table.name, "files"), copied)
    return metric


def _staleness(tables: Sequence[TableView]) -> Metric:
    metric = SummaryMetricFamily(
        "replay_batch_staleness_updates",
        "For each batch of a learner's stream: earlier batches whose updates had not arrived yet.",
        labels=_OF_TABLES,
    )
    for table in tables:
        metric.add_metric((table.name,), table.figures.batches, table.figures.batches_ahead)
    return metric


def _waits(tables: Sequence[TableView]) -> Iterator[Metric]:
    waiting = GaugeMetricFamily(
        "replay_calls_waiting",
        "Calls that wait. for: rows (too few to draw), samples, inserts (rate limiter), room (queue).",
        labels=("table", "for"),
    )
    waited = SummaryMetricFamily(
        "replay_wait_seconds", "Waits that have ended, by what the call waited for.", labels=("table", "for")
    )
    for table in tables:
        calls = {wait.lack.waited_for: wait.calls for wait in table.waits}
        for waited_for in table.may_wait_for:
            waiting.add_metric((table.name, waited_for), calls.get(waited_for, 0))
            waited.add_metric((table.name, waited_for), *table.figures.ended_waits.get(waited_for, Waits()))
    yield waiting
    yield waited


def _of_methods(endpoints: Iterable[tuple[str, AnyEndpoint]]) -> Iterator[Metric]:
    started = CounterMetricFamily("grpc_server_started", "Calls and streams started.", labels=_OF_METHODS)
    handled = CounterMetricFamily(
        "grpc_server_handled", "Calls and streams that ended, by status.", labels=(*_OF_METHODS, "grpc_code")
    )
    received = CounterMetricFamily("grpc_server_msg_received", "Requests received.", labels=_OF_METHODS)
    sent = CounterMetricFamily("grpc_server_msg_sent", "Replies sent.", labels=_OF_METHODS)
    handling = HistogramMetricFamily(
        "grpc_server_handling_seconds",
        "Time to answer a request, including waits; on a stream, each message counts.",
        labels=_OF_METHODS,
    )
    for name, endpoint in endpoints:
        figures = endpoint.figures
        labels = ("bidi_stream" if endpoint.is_stream else "unary", SERVICE, name)
        started.add_metric(labels, figures.started)
        received.add_metric(labels, figures.received)
        sent.add_metric(labels, figures.calls)
        # Prometheus sees the first internal error as an increase only if the count was 0 before.
        ended = {StatusCode.INTERNAL: 0, **figures.handled(is_stream=endpoint.is_stream)}
        for code, count in ended.items():
            handled.add_metric((*labels, code.name), count)
        buckets = [("+Inf" if math.isinf(bound) else f"{bound:g}", count) for bound, count in figures.histogram()]
        handling.add_metric(labels, buckets, figures.total_s)
    yield from (started, handled, received, sent, handling)
