"""Chooses how many batches a sampler keeps in flight, based on how long the learner waits for them.

    tuner = PrefetchTuner()
    tuner.stepped(began_waiting_s, ended_waiting_s)         # after each batch
    tuner.prefetch                                          # how many batches to keep in flight now

With more batches in flight, a learner waits less, but each batch misses more updates of priorities. So the tuner looks
for the smallest number that does not make steps slower. While the learner waits for batches, the tuner tries twice as
many. From time to time, it tries half as many.
"""

from __future__ import annotations

from typing import Final

from replay_client.draws import Prefetch, checked_count

FEWEST: Final = 2
"""One batch that the learner uses, and one that arrives meanwhile."""
MOST: Final = 16
_STEPS: Final = 96
"""Number of steps in a measurement."""
_SETTLING_STEPS: Final = 32
"""Steps that are ignored after a change."""
_SLOWEST: Final = _STEPS // 10
"""Number of slowest steps that a measurement ignores, because they are due to pauses of the system."""
_WAITS: Final = 0.1
"""A learner that waits for a smaller fraction of its time needs no more batches."""
_FASTER: Final = 0.95
"""Twice as many batches are kept if they reduce the time of a step to this fraction."""
_NO_SLOWER: Final = 1.02
"""Half as many batches are kept unless they increase the time of a step beyond this multiple."""
_FIRST_PAUSE: Final = 4
_LONGEST_PAUSE: Final = 256
"""First and longest pause between two attempts, in measurements. Each failed attempt doubles the pause."""


class FixedPrefetch:
    """A fixed number of batches, chosen by the user. It has the interface of `PrefetchTuner`."""

    def __init__(self, prefetch: int) -> None:
        self.prefetch = checked_count("prefetch", prefetch)
        """Number of batches to keep in flight."""

    def stepped(self, began_waiting_s: float, ended_waiting_s: float) -> None:
        """Do nothing."""


def prefetching(prefetch: Prefetch, most: int = MOST) -> FixedPrefetch | PrefetchTuner:
    """Return an object that chooses the number of batches in flight. With "auto", it never exceeds ``most``."""
    return PrefetchTuner(most) if prefetch == "auto" else FixedPrefetch(prefetch)


class PrefetchTuner:
    """See the module."""

    def __init__(self, most: int = MOST) -> None:
        """Begin with `FEWEST`; never exceed ``most``, which is a power of two."""
        self._most = most
        self.prefetch = FEWEST
        """Number of batches to keep in flight."""
        self._kept = FEWEST  # the best number so far; differs from `prefetch` during an attempt
        self._kept_step_s = 0.0  # the time of a step with `_kept`, just before the attempt
        self._pause, self._until_attempt = _FIRST_PAUSE, 0
        self._last_was_up = False
        self._ended_s: float | None = None  # end of the last step
        self._to_ignore = _SETTLING_STEPS
        self._step_s: list[float] = []
        self._waited_s = 0.0

    def stepped(self, began_waiting_s: float, ended_waiting_s: float) -> None:
        """Record when the learner began and ended waiting for the batch of a step, in seconds on any clock."""
        last, self._ended_s = self._ended_s, ended_waiting_s
        if self._to_ignore or last is None:
            self._to_ignore = max(0, self._to_ignore - 1)
            return
        self._step_s.append(ended_waiting_s - last)
        self._waited_s += ended_waiting_s - began_waiting_s
        if len(self._step_s) == _STEPS:
            usual = sorted(self._step_s)[:-_SLOWEST]
            self._decide(sum(usual) / len(usual), self._waited_s / sum(self._step_s))
            self._step_s.clear()
            self._waited_s = 0.0

    def _decide(self, step_s: float, waiting: float) -> None:
        """Decide what to try after a measurement of the mean time of a step and the fraction of time spent waiting."""
        if self.prefetch != self._kept:
            self._end_attempt(step_s)
        elif self._until_attempt:
            self._until_attempt -= 1
        else:
            self._kept_step_s = step_s
            more = waiting > _WAITS and self._kept < self._most
            fewer = self._kept > FEWEST
            if more and not (fewer and self._last_was_up):
                self._try(2 * self._kept)
            elif fewer:
                self._try(self._kept // 2)

    def _try(self, prefetch: int) -> None:
        self._last_was_up = prefetch > self._kept
        self._change(prefetch)

    def _end_attempt(self, step_s: float) -> None:
        """Keep the number that was tried, or return to the previous number."""
        is_better = step_s <= self._kept_step_s * (_FASTER if self._last_was_up else _NO_SLOWER)
        if is_better:
            self._kept, self._pause, self._until_attempt = self.prefetch, _FIRST_PAUSE, 0
            self._last_was_up = False  # having gone up, try further up first
            return
        self._until_attempt, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        self._change(self._kept)

    def _change(self, prefetch: int) -> None:
        self.prefetch, self._to_ignore = prefetch, _SETTLING_STEPS
