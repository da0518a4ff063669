"""Values that change with the number of environment steps."""

from __future__ import annotations

from dataclasses import dataclass


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
