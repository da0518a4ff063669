"""Events per second over a window of a few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

WINDOW_S = 10
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

    def per_second(self) -> float:
        """Return the events per second over the window, or over the time since the start if that is shorter."""
        now = self._advance()
        covered = min(now - self._second + WINDOW_S, now - self._began)
        return sum(self._counts) / covered if covered > 0 else 0.0

    def _advance(self) -> float:
        """Clear the buckets of seconds that began since the last call, and return the current time."""
        now = self._clock()
        passed = int(now) - self._second
        if passed:
            for second in range(self._second + 1, self._second + 1 + min(passed, _BUCKETS)):
                self._counts[second % _BUCKETS] = 0
            self._second = int(now)
        return now
