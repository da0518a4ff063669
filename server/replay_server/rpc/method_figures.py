"""Counts the calls and errors of an RPC method, and measures its latencies."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import grpc

_SHORTEST_S = 1e-6
_BARS_PER_DECADE = 24
"""Buckets of the histogram per power of ten. Each bucket is 10 % wider than the previous one."""
_BARS = 220
"""Number of buckets, enough for durations of up to 20 minutes."""
_STEP = 8
"""Number of buckets that `MethodFigures.histogram` merges into one."""
_FIRST, _LAST = _BARS_PER_DECADE, 8 * _BARS_PER_DECADE
"""Buckets that begin at the shortest and the longest finite bound of `MethodFigures.histogram`: 10 us and 100 s."""
_PERIOD_S = 10
_PERIODS = 6
"""Number of periods whose calls count as recent, including the current period: 50 to 60 s in total."""


@dataclass
class Answered:
    """Calls answered in an interval."""

    calls: int = 0
    """Number of calls, or of messages on streams."""
    total_s: float = 0.0
    """Total time in the server."""
    bars: Sequence[int] = (0,) * _BARS
    """Histogram of the durations."""
    covered_s: float = 0.0
    """Length of the interval in seconds."""

    @property
    def calls_per_s(self) -> float:
        """Calls per second."""
        return self.calls / self.covered_s if self.covered_s > 0 else 0.0

    @property
    def mean_s(self) -> float:
        """Mean duration; 0 without calls."""
        return self.total_s / self.calls if self.calls else 0.0

    def quantile_s(self, fraction: float) -> float:
        """Return a quantile of the duration, accurate to 10 %; 0 without calls."""
        below = 0
        for bar, count in enumerate(self.bars):
            below += count
            if count and below >= fraction * self.calls:
                return _duration_s(bar + 0.5)
        return 0.0


class _Mark(NamedTuple):
    """The counts of a method at one moment."""

    at_s: float
    calls: int
    total_s: float
    bars: tuple[int, ...]


class MethodFigures:
    """Statistics of one method: since the server started, and over about the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without calls; ``clock`` returns seconds."""
        self.started = 0
        """Unary calls and streams started."""
        self.received = 0
        """Requests received; on a stream, messages."""
        self.calls = 0
        """Calls answered; on a stream, messages answered."""
        self.errors = 0
        """Calls refused or failed."""
        self.active = 0
        """Running or waiting calls; streams count while they are open."""
        self.total_s = 0.0
        """Total time of answered calls."""
        self.ended: Counter[grpc.StatusCode] = Counter()
        """Number of unary calls and streams that ended, by status. Answered unary calls are missing; see `handled`."""
        self._clock = clock
        self._bars = [0] * _BARS
        self._period_ends_s = _period_end(clock())
        self._marks = deque([self._mark(clock())], maxlen=_PERIODS)

    def answered(self, duration_s: float) -> None:
        """Count a call and its duration."""
        if self._clock() >= self._period_ends_s:
            self._advance()
        self.calls += 1
        self.total_s += duration_s
        bar = int(math.log10(max(duration_s, _SHORTEST_S) / _SHORTEST_S) * _BARS_PER_DECADE)
        self._bars[min(bar, _BARS - 1)] += 1

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Count a stream as started, and as active inside the block."""
        self.started += 1
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1

    @property
    def is_used(self) -> bool:
        """Whether the method was ever called."""
        return bool(self.started or self.errors)

    def handled(self, *, is_stream: bool) -> dict[grpc.StatusCode, int]:
        """Return the number of unary calls or streams that ended, by status."""
        return dict(self.ended) if is_stream else {**self.ended, grpc.StatusCode.OK: self.calls}

    def histogram(self) -> list[tuple[float, int]]:
        """Return a cumulative histogram: pairs of a duration in seconds and how many calls took at most that long.

        There are three durations per power of ten. The last duration is infinity.
        """
        up_to = list(accumulate(self._bars))
        bounds = range(_FIRST, _LAST + 1, _STEP)
        return [*((float(f"{_duration_s(bar):.3g}"), up_to[bar - 1]) for bar in bounds), (math.inf, self.calls)]

    def recent(self) -> Answered:
        """Return statistics of the calls of the last 50 to 60 s, or since the start if that is less long ago."""
        now = self._advance()
        first = self._marks[0]
        return Answered(
            calls=self.calls - first.calls,
            total_s=self.total_s - first.total_s,
            bars=[count - before for count, before in zip(self._bars, first.bars, strict=True)],
            covered_s=now - first.at_s,
        )

    def _advance(self) -> float:
        """Record a mark for each period that began since the last `_advance`, and return the current time."""
        now = self._clock()
        ends_s = _period_end(now)
        first_s = max(self._period_ends_s, ends_s - _PERIODS * _PERIOD_S)
        self._marks.extend(self._mark(began_s) for began_s in range(first_s, ends_s, _PERIOD_S))
        self._period_ends_s = ends_s
        return now

    def _mark(self, at_s: float) -> _Mark:
        return _Mark(at_s, self.calls, self.total_s, tuple(self._bars))


def _duration_s(bar: float) -> float:
    """The duration at which a bucket begins."""
    return float(_SHORTEST_S * 10 ** (bar / _BARS_PER_DECADE))


def _period_end(now: float) -> int:
    """Return the end of the current period in seconds, a multiple of `_PERIOD_S`."""
    return (int(now // _PERIOD_S) + 1) * _PERIOD_S
