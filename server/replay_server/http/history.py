"""The rates of each table over the last ten minutes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

POINTS: Final = 600
"""Points per table: ten minutes, with one point per second."""
_DIGITS: Final = 1


class Counts(NamedTuple):
    """Rows inserted, rows drawn and priorities set: totals, or rates per second."""

    inserted: float
    drawn: float
    updated: float


class Meter:
    """Computes the rates of tables from their counts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without tables; ``clock`` is a monotonic clock in seconds."""
        self._clock = clock
        self._last_s = clock()
        self._counts: Mapping[bytes, Counts] = {}

    def rates(self, counts: Mapping[bytes, Counts]) -> dict[bytes, Counts]:
        """Return the rates since the last call, in which these tables had lower or equal counts, by uid.

        Counts are lower after a restart of a server.
        """
        clock_s = self._clock()
        passed_s, self._last_s = max(clock_s - self._last_s, 1e-9), clock_s
        before, self._counts = self._counts, counts
        grown = {
            uid: [now - then for now, then in zip(counts[uid], before[uid], strict=True)]
            for uid in counts
            if uid in before
        }
        return {uid: Counts(*(each / passed_s for each in by)) for uid, by in grown.items() if min(by) >= 0}


class History:
    """Records the rates of tables. All methods run on the event loop."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        """Start empty; ``now`` is a clock that returns the seconds since 1970."""
        self._now = now
        self._ticks = 0
        self._at = np.full(POINTS, np.nan)  # seconds since 1970; tick n is in slot n % POINTS
        self._per_s: dict[bytes, NDArray[np.float32]] = {}  # by uid, float32[POINTS, 3]

    def tick(self, rates: Mapping[bytes, Counts | None]) -> None:
        """Record the current rates of all tables, by uid; None: unknown."""
        slot = self._ticks % POINTS
        self._ticks += 1
        self._at[slot] = self._now()
        before, self._per_s = self._per_s, {}
        for uid, rate in rates.items():
            per_s = before.get(uid)
            if per_s is None:
                per_s = np.full((POINTS, len(Counts._fields)), np.nan, np.float32)
            per_s[slot] = np.nan if rate is None else rate
            self._per_s[uid] = per_s

    def points(self, uid: bytes, most: int = POINTS) -> dict[str, list[float]]:
        """Return the newest points of a table, oldest first: times in seconds since 1970, and rates per second."""
        per_s = self._per_s.get(uid)
        newest = min(most, self._ticks, POINTS)
        slots = np.arange(self._ticks - newest, self._ticks) % POINTS
        known = slots[:0] if per_s is None else slots[~np.isnan(per_s[slots, 0])]
        rates = np.empty((0, len(Counts._fields))) if per_s is None else per_s[known].astype(np.float64)
        columns = np.column_stack([self._at[known], rates]).round(_DIGITS).T.tolist()
        return dict(zip(("at", *Counts._fields), columns, strict=True))
