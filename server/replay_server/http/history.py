"""The rates of each table over the last ten minutes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay_server.table.table import Table

POINTS: Final = 600
"""Points per table: ten minutes, with one point per second."""
_DIGITS: Final = 1


class Counts(NamedTuple):
    """Rows inserted, rows drawn and priorities set."""

    inserted: float
    drawn: float
    updated: float


@dataclass
class _Recorded:
    counts: Counts
    """Totals at the last tick."""
    per_s: NDArray[np.float32] = field(
        default_factory=lambda: np.full((POINTS, len(Counts._fields)), np.nan, np.float32)
    )
    """float32[POINTS, 3]: rates per second, where tick n is in slot n % POINTS."""


class History:
    """Records the rates of tables. All methods run on the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        """Start empty.

        Args:
            clock: monotonic clock in seconds.
            now: clock that returns the seconds since 1970.
        """
        self._clock = clock
        self._now = now
        self._last_s = clock()
        self._ticks = 0
        self._at = np.full(POINTS, np.nan)  # seconds since 1970; tick n is in slot n % POINTS
        self._tables: dict[bytes, _Recorded] = {}

    def tick(self, tables: Iterable[Table]) -> None:
        """Record each table's rates since the last tick, and let its clients record their counts."""
        clock_s = self._clock()
        passed_s, self._last_s = max(clock_s - self._last_s, 1e-9), clock_s
        slot = self._ticks % POINTS
        self._ticks += 1
        self._at[slot] = self._now()
        before, self._tables = self._tables, {}
        for table in tables:
            counts = Counts(table.inserted, table.figures.draws, table.figures.updates)
            recorded = before.get(table.uid)
            if recorded is None:
                recorded = _Recorded(counts)
            else:
                recorded.per_s[slot] = [
                    (now - then) / passed_s for now, then in zip(counts, recorded.counts, strict=True)
                ]
                recorded.counts = counts
            self._tables[table.uid] = recorded
            for client in table.figures.clients:
                client.mark()

    def points(self, table: Table, most: int = POINTS) -> dict[str, list[float]]:
        """Return the newest points of a table, oldest first: times in seconds since 1970, and rates per second."""
        recorded = self._tables.get(table.uid)
        newest = min(most, self._ticks, POINTS)
        slots = np.arange(self._ticks - newest, self._ticks) % POINTS
        known = slots[:0] if recorded is None else slots[~np.isnan(recorded.per_s[slots, 0])]
        rates = np.empty((0, len(Counts._fields))) if recorded is None else recorded.per_s[known].astype(np.float64)
        columns = np.column_stack([self._at[known], rates]).round(_DIGITS).T.tolist()
        return dict(zip(("at", *Counts._fields), columns, strict=True))
