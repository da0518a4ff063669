"""The status of a run, and the meter that measures its rates."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

RATE_WINDOW_S = 5.0


@dataclass(frozen=True)
class Status:
    """Status of a run at one moment.

    Attributes:
        env_steps: environment steps over all actors.
        updates: gradient steps.
        recent_return: mean return of the last training episodes.
        best_mean: mean return of the best network, over all validation episodes that it played.
        loss: smoothed weighted loss.
        grad_norm: smoothed norm of the gradient before clipping.
        mean_value: smoothed mean value of the actions in batches.
        epsilon: probability of a random action; None if actors have different ones.
        beta: importance-sampling exponent.
        steps_per_s: recent environment steps per second.
        updates_per_s: recent gradient steps per second.
        batch_wait_s: seconds that the learner has waited for batches.
        note: anything else, such as what the learner is waiting for.
    """

    env_steps: int
    updates: int
    recent_return: float | None
    best_mean: float | None
    loss: float | None
    grad_norm: float | None
    mean_value: float | None
    epsilon: float | None
    beta: float
    steps_per_s: float
    updates_per_s: float
    batch_wait_s: float = 0.0
    note: str = ""


class RateMeter:
    """Measures how fast a count has grown in the last seconds."""

    def __init__(self, window_s: float = RATE_WINDOW_S, clock: Callable[[], float] = time.monotonic) -> None:
        """Average over ``window_s`` seconds."""
        self._window_s = window_s
        self._clock = clock
        self._points: deque[tuple[float, int]] = deque()

    def per_second(self, count: int) -> float:
        """Record the current count and return its growth per second."""
        now = self._clock()
        self._points.append((now, count))
        while len(self._points) > 1 and now - self._points[0][0] > self._window_s:
            self._points.popleft()
        first_time, first_count = self._points[0]
        return (count - first_count) / (now - first_time) if now > first_time else 0.0
