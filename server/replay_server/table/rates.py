"""Events per second over the last minute."""

from __future__ import annotations

import time
from collections.abc import Callable

WINDOW_S = 60
"""Length of the window in seconds."""
_BUCKETS = WINDOW_S + 1


class Rate:
    """Counts events in one-second buckets."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start empty; ``clock`` returns seconds."""
        self._clock = clock
        self._began = clock()
        self._counts = [0] * _BUCKETS
        self._second = int(self._began)
        self.total = 0
        """Total number of events."""

    def add(self, count: int) -> None:
        """Count events at the current time."""
        self.total += count
        self._advance()
        self._counts[self._second % _BUCKETS] += count

    def per_second(self, window_s: int = WINDOW_S) -> float:
        """Return the events per second over a window of up to `WINDOW_S`, or since the start if that is shorter."""
        now = self._advance()
        covered = min(now - self._second + window_s, now - self._began)
        if window_s == WINDOW_S:  # all buckets, without a loop: metrics and Stats need this for every table
            counted = sum(self._counts)
        else:
            counted = sum(
                self._counts[second % _BUCKETS] for second in range(self._second - window_s, self._second + 1)
            )
        return counted / covered if covered > 0 else 0.0

    def _advance(self) -> float:
        """Clear the buckets of seconds that began since the last call, and return the current time."""
        now = self._clock()
        passed = int(now) - self._second
        if passed:
            for second in range(self._second + 1, self._second + 1 + min(passed, _BUCKETS)):
                self._counts[second % _BUCKETS] = 0
            self._second = int(now)
        return now
