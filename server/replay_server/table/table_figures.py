"""Statistics of one table since the server started: recorded incrementally, read as snapshots.

    figures.updated(distinct=200, stale=3)
    figures.counts.repeated_inserts += 1
    with figures.one_waits("rows"):
        ...                                     # a call waits here
    seen = figures.now()

Rates cover the last minute.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from replay_proto.waits import RECENT_S

from replay_server.errors import WaitedFor
from replay_server.table.clients import Clients
from replay_server.table.rates import Rate
from replay_server.table.times_sampled import TimesSampled

_READINGS = 256
"""Number of clock readings for a full table."""


class InsertClock:
    """Reads the clock each time another 1/256 of the capacity has been inserted."""

    def __init__(self, capacity: int, inserted: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with a first reading. Rows that exist already count as inserted now."""
        self._clock = clock
        self._every = -(-capacity // _READINGS)
        self._readings: deque[tuple[int, float]] = deque([(inserted, clock())], maxlen=_READINGS + 2)

    def tick(self, inserted: int) -> None:
        """Record that all rows before this key have been inserted."""
        if inserted - self._readings[-1][0] >= self._every:
            self._readings.append((inserted, self._clock()))

    def ages_s(self, keys: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return float64[n]: seconds since each of these live rows was inserted, as precisely as the readings allow.

        keys: int64[n].
        """
        next_keys, times = zip(*self._readings, strict=True)
        places = np.searchsorted(next_keys, keys, side="right").clip(max=len(times) - 1)
        ages: NDArray[np.float64] = self._clock() - np.array(times)[places]
        return ages


class Waits(NamedTuple):
    """Waits that have ended."""

    calls: int = 0
    """Number of calls that waited."""
    total_s: float = 0.0
    """Their waiting times added up, in seconds."""


@dataclass
class CurrentFigures:
    """Statistics of one table at one moment. Counts start at 0 when the server starts."""

    sampled: int = 0
    """Rows drawn."""
    updated: int = 0
    """Priorities set."""
    inserted_per_s: float = 0.0
    """Rows per second over the last `rates.WINDOW_S` seconds."""
    sampled_per_s: float = 0.0
    updated_per_s: float = 0.0
    stale: int = 0
    """Stale keys in updates of priorities and rows."""
    rows_updated: int = 0
    """Rows whose mutable columns were written again."""
    repeated_inserts: int = 0
    """Repeated inserts. They were answered, but not applied again."""
    copied_by_clients: int = 0
    """Drawn rows that clients on this host copied from the table's files."""
    overtaken_copies: int = 0
    """Failed copies by clients on this host: inserts had overwritten the rows."""
    batches: int = 0
    """Batches that learners drew on streams."""
    batches_ahead: int = 0
    """Sum over these batches: the number of earlier batches whose updates had not arrived when the batch was drawn."""
    failed_syncs: int = 0
    """Failed syncs of the table to disk."""
    waiting: int = 0
    """Calls waiting now."""
    waiting_inserts: int = 0
    """Inserts among these calls."""
    waited: int = 0
    """Calls that had to wait."""
    ended_waits: Mapping[WaitedFor, Waits] = field(default_factory=dict)
    """Waits that have ended, by what the calls waited for."""
    times_sampled: tuple[tuple[int, int, int], ...] = ()
    """Histogram of live rows by number of draws. Each bucket is a minimum, a maximum and a number of rows."""


class TableFigures:
    """Records the statistics of one table. All methods run on the event loop."""

    def __init__(self, *, slots: int, capacity: int, inserted: int, size: int) -> None:
        """Start without events, for a table with ``size`` live rows whose next key is ``inserted``."""
        self._inserted = Rate()
        self._sampled = Rate()
        self._updated = Rate()
        self._clock = InsertClock(capacity, inserted)
        self._times_sampled = TimesSampled(slots)
        self._times_sampled.appear(size)
        self.counts = CurrentFigures()
        """Counters that callers increment directly; `snapshot` adds the other statistics."""
        self.clients = Clients()
        """Clients with open streams."""
        self._ended_waits: dict[WaitedFor, Waits] = {}

    def inserted(self, rows: int, next_key: int) -> None:
        """Count rows that became live; ``next_key`` is the key after the last one."""
        self._inserted.add(rows)
        self._clock.tick(next_key)
        self._times_sampled.appear(rows)

    def evicted(self, keys: NDArray[np.int64]) -> None:
        """Record that rows are no longer live. keys: int64[n]."""
        self._times_sampled.disappear(keys)

    def blank_times_sampled(self) -> TimesSampled:
        """Return counts of draws for a table of the same size without rows. May run in any thread."""
        return self._times_sampled.blank()

    def replace_times_sampled(self, counts: TimesSampled) -> TimesSampled:
        """Count draws of live rows in ``counts`` from now on; return the earlier counts."""
        self._times_sampled, before = counts, self._times_sampled
        return before

    def drawn(self, keys: NDArray[np.int64]) -> None:
        """Count draws of live rows. keys: int64[n], the rows handed out that are still live."""
        self._times_sampled.draw(keys)

    def handed_out(self, rows: int) -> None:
        """Count rows that were drawn, whether or not they are still live."""
        self._sampled.add(rows)

    def asked_ahead(self, batches: int, ahead: int) -> None:
        """Count batches that a learner drew while it had not yet sent the updates of ``ahead`` earlier batches."""
        self.counts.batches += batches
        # When a batch of this request is drawn, the batches before it in the same request are in flight, too.
        self.counts.batches_ahead += batches * ahead + batches * (batches - 1) // 2

    def updated(self, distinct: int, stale: int) -> None:
        """Count an update of ``distinct`` rows that also had ``stale`` stale keys."""
        self._updated.add(distinct)
        self.counts.stale += stale

    def rows_updated(self, distinct: int, stale: int) -> None:
        """Count an update of mutable columns in ``distinct`` rows that also had ``stale`` stale keys."""
        self.counts.rows_updated += distinct
        self.counts.stale += stale

    @contextmanager
    def one_waits(self, waited_for: WaitedFor) -> Iterator[None]:
        """Count a call as waiting inside the block."""
        self.counts.waiting += 1
        began = time.monotonic()
        try:
            yield
        finally:
            self.counts.waiting -= 1
            waited_s = time.monotonic() - began
            calls, total_s = self._ended_waits.get(waited_for, Waits())
            self._ended_waits[waited_for] = Waits(calls + 1, total_s + waited_s)

    @property
    def recent_inserts_per_s(self) -> float:
        """Rows inserted per second in the last `RECENT_S` seconds."""
        return self._inserted.per_second(RECENT_S)

    @property
    def recent_draws_per_s(self) -> float:
        """Rows drawn per second in the last `RECENT_S` seconds."""
        return self._sampled.per_second(RECENT_S)

    @property
    def draws(self) -> int:
        """Number of rows drawn."""
        return self._sampled.total

    @property
    def updates(self) -> int:
        """Number of priorities set."""
        return self._updated.total

    def ages_s(self, keys: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return float64[n]: seconds since each of these live rows was inserted. keys: int64[n]."""
        return self._clock.ages_s(keys)

    def times_sampled(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: how often each of these live rows was drawn. keys: int64[n]."""
        return self._times_sampled.of(keys)

    def now(self) -> CurrentFigures:
        """Return the current statistics."""
        return replace(
            self.counts,
            sampled=self._sampled.total,
            updated=self._updated.total,
            inserted_per_s=self._inserted.per_second(),
            sampled_per_s=self._sampled.per_second(),
            updated_per_s=self._updated.per_second(),
            ended_waits=dict(self._ended_waits),
            times_sampled=tuple(self._times_sampled.bars()),
        )
