"""Statistics of a server and its tables, from `ReplayClient.stats` and `Table.stats`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from replay_proto.merged_stats import quantiles_of
from replay_proto.v1 import replay_pb2
from replay_proto.waits import wait_sentence

from replay_client.results import mirrored
from replay_client.results.description import TableDescription
from replay_client.results.shards import ShardMap


@dataclass(frozen=True)
class MethodStats:
    """Statistics of one RPC method. Counts begin when the server starts; times are those of the last minute's calls."""

    method: str
    """Name of the method, such as ``Sample``."""
    calls: int
    """Calls answered; on a stream, messages answered."""
    errors: int
    """Calls refused or failed."""
    active: int
    """Running and waiting calls, including open streams."""
    calls_per_s: float
    """Calls answered per second, over the last minute."""
    mean_ms: float
    """Mean time in the server, in milliseconds; 0 without calls in the last minute."""
    p50_ms: float
    """Median time, within 10 %."""
    p99_ms: float
    """99th percentile, within 10 %."""


@dataclass(frozen=True)
class ServerStats:
    """The server's process."""

    version: str
    """Version of the server."""
    uptime_s: float
    """Seconds since it started serving."""
    resident_bytes: int
    """Resident memory, including mapped tables."""
    cpu_s: float
    """CPU time used, in seconds."""
    methods: Mapping[str, MethodStats]
    """Methods that were called, by name."""

    @classmethod
    def from_proto(cls, message: replay_pb2.ServerStats) -> ServerStats:
        """Convert a message."""
        return mirrored(
            cls, message, methods={method.method: mirrored(MethodStats, method) for method in message.methods}
        )


@dataclass(frozen=True)
class Rates:
    """Rates over a recent window."""

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
    """One bar of a histogram of live rows by number of draws."""

    at_least: int
    """Lower bound on the number of draws."""
    at_most: int
    """Upper bound on the number of draws."""
    rows: int
    """Number of rows."""


@dataclass(frozen=True)
class StepStats:
    """Counts of rows of a table of steps. Steps between the anchors of sequences are not counted."""

    drawable: int
    """Anchors with a complete window, which can be drawn."""
    pending: int
    """Anchors that wait for later rows of their window."""
    broken: int
    """Anchors that can never be drawn again: rows of their window were evicted, lost, or never inserted."""
    closing: int
    """Rows that close an episode."""
    lost: int = 0
    """Anchors that were evicted before their window was complete, since the server started or the table was reset. In a
    queue, their windows were never delivered."""


@dataclass(frozen=True)
class LimiterStats:
    """State of a table's rate limiter."""

    inserted: int
    """Rows inserted since the table was created or reset."""
    sampled: int
    """Rows drawn since the table was created or reset."""
    difference: float
    """``inserted * samples_per_insert - sampled``; 0 without a ratio."""


@dataclass(frozen=True)
class WaitStats:
    """Calls that wait in line for the same thing. ``str(wait)`` says who waits for what, and how much longer."""

    waited_for: str
    """``rows``, ``samples``, ``inserts`` or ``room``. `LimitedError` explains this, ``have`` and ``needed``."""
    calls: int
    """Number of calls in line."""
    have: int
    """How much the first call in line has."""
    needed: int
    """How much the first call needs."""
    waited_s: float
    """Seconds that the first call has waited."""
    expected_s: float | None
    """Expected remaining wait in seconds, from the rates of the last 10 seconds; None without progress in that time."""

    def __str__(self) -> str:
        """Say who waits for what, such as "1 learner waits for rows: 3,120 of 10,000, about 4 s"."""
        return wait_sentence(**vars(self))


@dataclass(frozen=True)
class ShardReport:
    """What a client last heard of a shard of a table."""

    inserted: int
    """Rows ever inserted into it."""
    size: int
    """Its live rows."""
    total_mass: float
    """Mass of its rows; 0 if unknown."""


@dataclass(frozen=True)
class TableStats:
    """Statistics of one table.

    "Ever" means since the table was created, and "since the start" means since the server started.
    """

    table: TableDescription
    """The table's description."""
    bytes: int
    """Bytes reserved for rows, priorities and records."""
    evicted: int
    """Rows ever evicted or reset."""
    sampled: int
    """Rows drawn, since the start."""
    updated: int
    """Priorities updated on live rows, since the start."""
    stale: int
    """Stale keys in updates, since the start."""
    lost: int
    """Rows ever lost to power losses and, with several servers, with the shards of lost servers."""
    unsynced: int
    """Rows inserted since the last sync point, which could be lost in a power loss; 0 without checksums."""
    failed_syncs: int
    """Failed syncs to disk, since the start."""
    repeated_inserts: int
    """Retried inserts that were acknowledged but not applied again, since the start."""
    rates: Rates
    """Rates over the last minute."""
    waiting: int
    """Waiting calls, whatever they wait for."""
    waiting_inserts: int
    """Inserts among the waiting calls."""
    waited: int
    """Calls that had to wait, since the start."""
    waits: tuple[WaitStats, ...]
    """The waiting calls, with one entry for each thing that draws or inserts wait for."""
    total_mass: float
    """Mass of all live rows."""
    largest_priority: float
    """Largest priority of a live row; 0 if there is none."""
    smallest_priority: float
    """Smallest priority of a live row; 0 if there is none."""
    priorities: Mapping[float, float]
    """Quantiles of the priorities of live rows, by fraction: the median is at 0.5."""
    ages_s: Mapping[float, float]
    """Quantiles of the ages of live rows, in seconds, by fraction."""
    times_sampled: tuple[TimesSampled, ...]
    """Histogram of live rows by number of draws."""
    rate_limiter: LimiterStats | None
    """State of the rate limiter, if any."""
    steps: StepStats | None
    """In a table of steps, counts of rows by whether they can be drawn; otherwise None."""
    sampled_same_host: int
    """Drawn rows that clients on the server's host copied themselves, since the start."""
    overtaken: int
    """Batches drawn again because inserts overwrote rows during such a copy, since the start."""
    batches: int
    """Batches drawn by samplers, since the start."""
    batches_ahead: int
    """Total number of other batches that samplers had in flight when they requested these batches."""
    shards: Mapping[int, TableStats] = field(default_factory=dict)
    """For a table on several servers, the statistics of each shard that is not away, by id; otherwise empty. Counts,
    rates, masses and bars of the table are sums over these shards, and its quantiles are estimates."""
    shards_away: tuple[int, ...] = ()
    """Ids of the shards whose servers are away; the other figures do not include them."""
    mass_away: float = 0.0
    """Mass of the rows of these shards when clients last heard of them."""
    reports: Mapping[int, ShardReport] = field(default_factory=dict)
    """Last known state of other shards of this table by id, from clients that found the shards' servers away."""

    @property
    def staleness(self) -> float:
        """Mean number of earlier batches whose updates a sampler's draw does not reflect; at most prefetch - 1."""
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
        """Maximum number of rows."""
        return self.table.capacity

    @property
    def inserted(self) -> int:
        """Rows ever inserted."""
        return self.table.inserted

    @classmethod
    def from_proto(cls, message: replay_pb2.TableStats) -> TableStats:
        """Convert a message."""
        return mirrored(
            cls,
            message,
            table=TableDescription.from_proto(message.table),
            rates=mirrored(Rates, message.rates),
            priorities=quantiles_of(message.priorities),
            ages_s=quantiles_of(message.ages_s),
            times_sampled=tuple(mirrored(TimesSampled, bar) for bar in message.times_sampled),
            rate_limiter=mirrored(LimiterStats, message.rate_limiter) if message.HasField("rate_limiter") else None,
            waits=tuple(_wait(wait) for wait in message.waits),
            steps=mirrored(StepStats, message.steps) if message.HasField("steps") else None,
            shards={},
            shards_away=(),
            mass_away=0.0,
            reports={report.shard_id: mirrored(ShardReport, report) for report in message.reports},
        )


@dataclass(frozen=True)
class Stats:
    """Statistics of one or several servers, and of the requested tables."""

    server: ServerStats
    """The server's process. With several servers, counts, memory and CPU time are sums, the uptime is the shortest, and
    latencies are estimates."""
    tables: Mapping[str, TableStats]
    """Tables by name, sorted."""
    shards: ShardMap | None = None
    """All servers, if there are several."""
    servers: Mapping[int, ServerStats] = field(default_factory=dict)
    """If there are several servers, the process of each by the id of its shard, without those that are away."""

    @property
    def shards_away(self) -> tuple[int, ...]:
        """Ids of the shards whose servers are away."""
        in_use = () if self.shards is None else self.shards.in_use
        return tuple(shard.id for shard in in_use if shard.id not in self.servers)

    @classmethod
    def from_proto(cls, message: replay_pb2.StatsResponse) -> Stats:
        """Convert a message."""
        return cls(
            server=ServerStats.from_proto(message.server),
            tables={table.table.config.name: TableStats.from_proto(table) for table in message.tables},
            shards=ShardMap.from_proto(message.shards) if message.HasField("shards") else None,
        )


def _wait(message: replay_pb2.WaitStats) -> WaitStats:
    return mirrored(WaitStats, message, expected_s=message.expected_s if message.HasField("expected_s") else None)
