"""Statistics of one table since the server started, recorded incrementally, read as a snapshot.

figures.updated(distinct=200, stale=3)
figures.counts.repeated_inserts += 1
with figures.one_waits():
...
seen = figures.snapshot()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from replay_server.table.figures.ages import InsertClock
from replay_server.table.figures.rates import Rate
from replay_server.table.figures.times_sampled import TimesSampled


@dataclass
class Snapshot:
    """Figures of one table at one moment. Counts are since the server began."""

    sampled: int = 0
    """Rows drawn."""
    updated: int = 0
    """Priorities set."""
    inserted_per_s: float = 0.0
    """Rows per second over the last `rates.WINDOW_S` seconds."""
    sampled_per_s: float = 0.0
    updated_per_s: float = 0.0
    stale: int = 0
    """Keys of updates that were not live."""
    repeated_inserts: int = 0
    """Repeated inserts that were answered and not applied again."""
    copied_by_clients: int = 0
    """Rows drawn that clients on this host copied themselves."""
    overtaken_copies: int = 0
    """How often inserts overtook such a copy."""
    batches: int = 0
    """Batches that learners drew on streams."""
    batches_ahead: int = 0
    """Sum over these of how many batches' updates each draw did not know of."""
    failed_syncs: int = 0
    """How often the disk refused to take the table."""
    waiting: int = 0
    """Calls that wait now."""
    waiting_inserts: int = 0
    """Calls among them that wait to insert."""
    waited: int = 0
    """Calls that had to wait."""
    times_sampled: tuple[tuple[int, int, int], ...] = ()
    """Live rows by how often they were drawn: at least, at most, how many rows."""


class TableFigures:
    """See the module. Lives on the event loop."""

    def __init__(self, *, slots: int, capacity: int, inserted: int, size: int) -> None:
        """Begin with a table of so many slots, which has ``size`` live rows."""
        self._inserted = Rate()
        self._sampled = Rate()
        self._updated = Rate()
        self._clock = InsertClock(capacity, inserted)
        self._times_sampled = TimesSampled(slots)
        self._times_sampled.appear(size)
        self.counts = Snapshot()
        """Whoever sees something happen counts it here; `snapshot` fills in the rest."""

    def inserted(self, rows: int, next_key: int) -> None:
        """Rows have become live, all below this key."""
        self._inserted.add(rows)
        self._clock.tick(next_key)
        self._times_sampled.appear(rows)

    def evicted(self, keys: NDArray[np.int64]) -> None:
        """Rows are live no more. keys: int64[n]."""
        self._times_sampled.disappear(keys)

    def drawn(self, keys: NDArray[np.int64]) -> None:
        """Live rows were drawn. keys: int64[n], those among the rows handed out that are live."""
        self._times_sampled.draw(keys)

    def handed_out(self, rows: int) -> None:
        """So many rows were drawn, whether or not they are still live."""
        self._sampled.add(rows)

    def asked_ahead(self, batches: int, ahead: int) -> None:
        """A learner drew batches on a stream while ``ahead`` others were on their way."""
        self.counts.batches += batches
        # Each batch of the message comes after the ones before it.
        self.counts.batches_ahead += batches * ahead + batches * (batches - 1) // 2

    def updated(self, distinct: int, stale: int) -> None:
        """An update set the priorities of so many rows; so many other keys were not live."""
        self._updated.add(distinct)
        self.counts.stale += stale

    @contextmanager
    def one_waits(self) -> Iterator[None]:
        """Count a call that waits inside."""
        self.counts.waiting += 1
        try:
            yield
        finally:
            self.counts.waiting -= 1

    @property
    def updates(self) -> int:
        """Priorities set."""
        return self._updated.total

    def age_s(self, key: int) -> float:
        """Seconds since a live row was inserted."""
        return self._clock.age_s(key)

    def times_sampled(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n]: how often each of these live rows was drawn. keys: int64[n]."""
        return self._times_sampled.of(keys)

    def snapshot(self) -> Snapshot:
        """The figures as they stand."""
        return replace(
            self.counts,
            sampled=self._sampled.total,
            updated=self._updated.total,
            inserted_per_s=self._inserted.per_second(),
            sampled_per_s=self._sampled.per_second(),
            updated_per_s=self._updated.per_second(),
            times_sampled=tuple(self._times_sampled.bars()),
        )
