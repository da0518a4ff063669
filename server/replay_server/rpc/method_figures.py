"""Calls, errors and latencies of each RPC method."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_SHORTEST_S = 1e-6
_GROWTH = 1.1
"""Each bucket of the histogram is 10 % wider than the previous one."""
_BARS = 220
"""Number of buckets, enough for durations of up to 20 minutes."""


@dataclass
class MethodFigures:
    """Statistics of one method since the server started."""

    calls: int = 0
    """Calls answered; on a stream, messages answered."""
    errors: int = 0
    """Calls refused or failed."""
    active: int = 0
    """Running or waiting calls; streams count while they are open."""
    total_s: float = 0.0
    """Total time of answered calls."""
    _bars: list[int] = field(default_factory=lambda: [0] * _BARS)

    def answered(self, duration_s: float) -> None:
        """Count a call and its duration."""
        self.calls += 1
        self.total_s += duration_s
        bar = int(math.log(max(duration_s, _SHORTEST_S) / _SHORTEST_S, _GROWTH))
        self._bars[min(bar, _BARS - 1)] += 1

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Count a call as active inside the block."""
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1

    @property
    def is_used(self) -> bool:
        """Whether the method was ever called."""
        return bool(self.calls or self.errors or self.active)

    @property
    def mean_s(self) -> float:
        """Mean duration; 0 before the first call."""
        return self.total_s / self.calls if self.calls else 0.0

    def quantile_s(self, fraction: float) -> float:
        """Quantile of the duration, within 10 %; 0 before the first call."""
        below = 0
        for bar, count in enumerate(self._bars):
            below += count
            if count and below >= fraction * self.calls:
                return float(_SHORTEST_S * _GROWTH ** (bar + 0.5))
        return 0.0
