"""What changes with time: periodic tasks, and values that depend on the number of environment steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


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


@dataclass(frozen=True)
class LinearSchedule:
    """Interpolates linearly from ``start`` to ``end`` over ``steps``, then stays at ``end``.

    Attributes:
        start: value at step 0.
        end: value from ``steps`` on.
        steps: duration; with 0 the value is always ``end``.
    """

    start: float
    end: float
    steps: int

    def __call__(self, step: int) -> float:
        """Return the value at ``step``."""
        if step >= self.steps:
            return self.end
        progress = max(step, 0) / self.steps
        return self.start + progress * (self.end - self.start)
