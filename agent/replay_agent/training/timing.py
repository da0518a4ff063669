"""Periodic tasks."""

from __future__ import annotations

import time
from collections.abc import Callable


class Interval:
    """A timer that is due periodically."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the period in seconds."""
        self._seconds = seconds
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Start a new period now."""
        self._due_at = self._clock() + self._seconds

    def is_due(self) -> bool:
        """Return whether the timer is due. If it is, restart it."""
        if self._clock() < self._due_at:
            return False
        self.restart()
        return True
