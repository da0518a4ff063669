"""What the waiting calls of a table wait for, and for how long, as shown by Stats, metrics and web pages."""

from __future__ import annotations

import time
from typing import NamedTuple

from replay_server.errors import Lack
from replay_server.table.table import Table


class Wait(NamedTuple):
    """Calls waiting in one line of a table."""

    lack: Lack
    """What the first call lacks."""
    calls: int
    """Number of calls."""
    waited_s: float
    """Seconds that the first call has waited."""
    expected_s: float | None
    """Seconds that the first call will still wait at the recent rates of inserts and draws; None if these are 0."""

    @classmethod
    def of(cls, table: Table, lack: Lack, calls: int, since: float) -> Wait:
        """Describe a line of calls, and estimate how long the first one will still wait.

        ``lack`` is what the first call lacks, ``since`` when it began to wait, by the monotonic clock.
        """
        per_s = _progress_per_s(table, lack)
        expected_s = (lack.needed - lack.have) / per_s if per_s else None
        return cls(lack, calls, time.monotonic() - since, expected_s)


def _progress_per_s(table: Table, lack: Lack) -> float:
    """Return how fast `Lack.have` grows per second, at the recent rates of inserts and draws."""
    figures, limit = table.figures, table.config.rate_limit
    times = table.config.max_times or table.config.most_draws or 1
    if lack.waited_for in ("windows", "turn"):
        return 0.0
    if lack.waited_for == "rows":
        is_for_size = limit is not None and lack.needed == limit.min_size and table.drawable < limit.min_size
        return figures.recent_inserts_per_s * (1 if is_for_size else times)  # otherwise, it lacks draws of rows
    if lack.waited_for == "samples":
        return figures.recent_inserts_per_s * (limit.samples_per_insert or 0.0 if limit else 0.0)
    return figures.recent_draws_per_s / (times if lack.waited_for == "room" else 1)
