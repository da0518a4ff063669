"""Things that are done every so many seconds."""

from __future__ import annotations

import time
from collections.abc import Callable


class Interval:
    """Says when it is time again."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Be due first after ``seconds``, and then again and again."""
        self._seconds = seconds
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Count from now."""
        self._due_at = self._clock() + self._seconds

    def is_due(self) -> bool:
        """Whether it is time; if so, count from now."""
        if self._clock() < self._due_at:
            return False
        self.restart()
        return True
