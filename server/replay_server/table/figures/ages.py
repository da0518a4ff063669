"""Insertion times of rows, estimated from a few clock readings; precise enough for quantiles of age."""

from __future__ import annotations

import bisect
import time
from collections import deque
from collections.abc import Callable

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

    def age_s(self, key: int) -> float:
        """Return the seconds since a live row was inserted, as precisely as the readings allow."""
        index = bisect.bisect_right(self._readings, (key, float("inf")))
        at = self._readings[min(index, len(self._readings) - 1)][1]
        return self._clock() - at
