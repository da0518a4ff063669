"""Figures of a server and its tables, as `ReplayClient.stats` and `Table.stats` return them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from replay_proto.v1 import replay_pb2

from replay_client.results.description import TableDescription


@dataclass(frozen=True)
class MethodStats:
    """One RPC method since the server began."""

    method: str
    """Its name, such as ``Sample``."""
    calls: int
    """Calls answered; on a stream, messages answered."""
    errors: int
    """Calls refused or failed."""
    active: int
    """Calls at work or waiting; streams count while they are open."""
    mean_ms: float
    """Mean time in the server, in milliseconds."""
    p50_ms: float
    """Median of it, within 10 %."""
    p99_ms: float
    """99th percentile of it, within 10 %."""


@dataclass(frozen=True)
class ServerStats:
    """The server's process."""

    version: str
    """Version of the server."""
    uptime_s: float
    """Seconds since it began to serve."""
    resident_bytes: int
    """Resident memory, mapped tables included."""
    cpu_s: float
    """Processor time used, in seconds."""
    methods: Mapping[str, MethodStats]
    """Every method that was called, by name."""


@dataclass(frozen=True)
class Rates:
    """What happened per second, over a window that ends now."""

    window_s: float
    """Length of the window in seconds."""
    inserted_per_s: float
    """Rows inserted per second."""
    sampled_per_s: float
    """Rows drawn per second."""
    updated_per_s: float
    """Priorities set per second."""


@dataclass(frozen=True)
class TimesSampled:
    """One bar of the distribution of how often live rows were drawn."""

    at_least: int
    """Rows that were drawn at least this often,"""
    at_most: int
    """and at most this often."""
    rows: int
    """How many rows."""


@dataclass(frozen=True)
class LimiterStats:
    """How a table's rate limiter stands."""

    inserted: int
    """Rows inserted since the table was made or reset."""
    sampled: int
    """Rows drawn since then."""
    difference: float
    """``inserted * samples_per_insert - sampled``; 0 where no ratio is kept."""


@dataclass(frozen=True)
class TableStats:
    """One table. "Ever" is since the table was made; "since the start" is of the server."""

    table: TableDescription
    """What it is and how far it is filled."""
    bytes: int
    """Reserved for its rows, priorities and records."""
    evicted: int
    """Rows that were overwritten or reset, ever."""
    sampled: int
    """Rows drawn, since the start."""
    updated: int
    """Priorities set on live rows, since the start."""
    stale: int
    """Keys of updates that were not live, since the start."""
    lost: int
    """Rows that losses of power took, ever."""
    unsynced: int
    """Rows inserted since the last sync point, which a loss of power may take; 0 in a table without checksums."""
    failed_syncs: int
    """How often the disk refused to take the table's files, since the start."""
    repeated_inserts: int
    """Repeated inserts that were answered and not applied again, since the start."""
    rates: Rates
    """Rates over the last seconds."""
    waiting: int
    """Calls that wait, for whatever it is."""
    waiting_inserts: int
    """Calls among them that wait to insert."""
    waited: int
    """Calls that had to wait, since the start."""
    total_mass: float
    """Mass of all live rows."""
    largest_priority: float
    """Largest priority of a live row; 0 if there is none."""
    smallest_priority: float
    """Smallest priority of a live row; 0 if there is none."""
    priorities: Mapping[float, float]
    """Quantiles of priority over live rows: the value by the fraction of rows at or below it."""
    ages_s: Mapping[float, float]
    """Quantiles of the age of live rows, in seconds."""
    times_sampled: tuple[TimesSampled, ...]
    """How often live rows have been drawn."""
    rate_limiter: LimiterStats | None
    """How the rate limiter stands; None if there is none."""
    sampled_same_host: int
    """Rows drawn that clients on the server's host copied themselves, since the start."""
    overtaken: int
    """How often inserts overtook such a copy, so that another batch was sent, since the start."""
    batches: int
    """Batches that samplers drew, since the start."""
    batches_ahead: int
    """Sum over these of how many earlier batches of the sampler were on their way when each was asked for."""

    @property
    def staleness(self) -> float:
        """How many batches' updates a sampler's draw does not know of, in the mean: at most its prefetch - 1."""
        return self.batches_ahead / self.batches if self.batches else 0.0

    @property
    def name(self) -> str:
        """Name of the table."""
        return self.table.name

    @property
    def size(self) -> int:
        """Live rows."""
        return self.table.size

    @property
    def capacity(self) -> int:
        """Number of rows kept."""
        return self.table.capacity

    @property
    def inserted(self) -> int:
        """Rows ever inserted."""
        return self.table.inserted

    @classmethod
    def from_proto(cls, message: replay_pb2.TableStats) -> TableStats:
        """Read it from a message."""
        return cls(
            table=TableDescription.from_proto(message.table),
            bytes=message.bytes,
            evicted=message.evicted,
            sampled=message.sampled,
            updated=message.updated,
            stale=message.stale,
            lost=message.lost,
            unsynced=message.unsynced,
            failed_syncs=message.failed_syncs,
            repeated_inserts=message.repeated_inserts,
            rates=Rates(
                window_s=message.rates.window_s,
                inserted_per_s=message.rates.inserted_per_s,
                sampled_per_s=message.rates.sampled_per_s,
                updated_per_s=message.rates.updated_per_s,
            ),
            waiting=message.waiting,
            waiting_inserts=message.waiting_inserts,
            waited=message.waited,
            total_mass=message.total_mass,
            largest_priority=message.largest_priority,
            smallest_priority=message.smallest_priority,
            priorities={quantile.fraction: quantile.value for quantile in message.priorities},
            ages_s={quantile.fraction: quantile.value for quantile in message.ages_s},
            times_sampled=tuple(TimesSampled(bar.at_least, bar.at_most, bar.rows) for bar in message.times_sampled),
            sampled_same_host=message.sampled_same_host,
            overtaken=message.overtaken,
            batches=message.batches,
            batches_ahead=message.batches_ahead,
            rate_limiter=_limiter(message.rate_limiter) if message.HasField("rate_limiter") else None,
        )


def _limiter(message: replay_pb2.LimiterStats) -> LimiterStats:
    return LimiterStats(message.inserted, message.sampled, message.difference)


@dataclass(frozen=True)
class Stats:
    """The server and the tables asked for."""

    server: ServerStats
    """The server's process."""
    tables: Mapping[str, TableStats]
    """The tables by name, in the order of their names."""

    @classmethod
    def from_proto(cls, message: replay_pb2.StatsResponse) -> Stats:
        """Read them from a message."""
        server = message.server
        methods = {
            method.method: MethodStats(
                method=method.method,
                calls=method.calls,
                errors=method.errors,
                active=method.active,
                mean_ms=method.mean_ms,
                p50_ms=method.p50_ms,
                p99_ms=method.p99_ms,
            )
            for method in server.methods
        }
        return cls(
            server=ServerStats(
                version=server.version,
                uptime_s=server.uptime_s,
                resident_bytes=server.resident_bytes,
                cpu_s=server.cpu_s,
                methods=methods,
            ),
            tables={table.table.config.name: TableStats.from_proto(table) for table in message.tables},
        )
