"""Draws without replacement: one row after another, each in proportion to the mass of the rows that are left.

Drawing with replacement, and skipping rows that were drawn before, has the same distribution. This takes too long if
few rows have almost all of the mass. Then the rest of the batch is drawn at once: each row gets a random time,
exponentially distributed with its mass as rate, and the earliest rows are drawn (Efraimidis and Spirakis 2006,
"Weighted random sampling with a reservoir").
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from replay_proto.errors import FieldError

from replay_server.backends.index import LEAST_PROBABILITY, Drawn, LiveRows, PriorityIndex, live_slots

_ATTEMPTS: Final = 10
"""Attempts to draw the missing rows with replacement."""
_MOST_POINTS: Final = 2048
"""Maximum number of points in an attempt, or the number of rows, if that is larger."""
_MOST_ROWS: Final = 1 << 15
"""Maximum number of live rows that get random times, which takes a few milliseconds, during which other callers
wait."""


def draw_distinct(
    index: PriorityIndex, points: NDArray[np.float64], priorities: NDArray[np.float64], live: LiveRows
) -> Drawn:
    """Draw as many different rows as there are points. There must be as many that can be drawn.

    The points are float64[batch] in [0, 1), independent. The same points draw the same rows of the same table.

    Raises:
        FieldError: too few rows have mass, or the table is too large to find rows with so little mass.
    """
    random = np.random.default_rng(points.view(np.uint64))
    drawn, count = _without_repeats(index.draw(points, live), len(points)), len(points)
    for attempt in range(_ATTEMPTS):
        missing = count - len(drawn.keys)
        if not missing:
            return drawn
        more = index.draw(random.random(min(2 * missing << attempt, max(count, _MOST_POINTS))), live)
        drawn = _without_repeats(_joined(drawn, more), count)
    missing = count - len(drawn.keys)
    return _joined(drawn, _rarest(index, drawn.keys, missing, priorities, live, random)) if missing else drawn


def _without_repeats(drawn: Drawn, count: int) -> Drawn:
    """Keep the first occurrence of each row, and at most ``count`` rows."""
    _, firsts = np.unique(drawn.keys, return_index=True)
    firsts = np.sort(firsts)[:count]
    return Drawn(drawn.keys[firsts], drawn.probabilities[firsts])


def _joined(drawn: Drawn, more: Drawn) -> Drawn:
    return Drawn(*(np.concatenate(each) for each in zip(drawn, more, strict=True)))


def _rarest(
    index: PriorityIndex,
    drawn: NDArray[np.int64],
    count: int,
    priorities: NDArray[np.float64],
    live: LiveRows,
    random: np.random.Generator,
) -> Drawn:
    """Draw ``count`` more rows, other than those drawn before."""
    if live.size > _MOST_ROWS:
        expected = f"another mode: {len(drawn):,} rows have almost all of the mass, and the table has too many others"
        raise FieldError("draw_mode", expected, "WITHOUT_REPLACEMENT")
    newest_first = priorities[live_slots(live)[::-1]]
    order = np.argsort(-newest_first, kind="stable")[: np.count_nonzero(newest_first >= 0.0)]  # by rank
    keys = live.oldest + live.size - 1 - order
    masses = index.masses(newest_first[order], np.arange(1, len(order) + 1))
    total = index.total_mass
    if total <= 0.0:
        masses, total = np.ones(len(keys)), float(live.size)  # by rule, rows are drawn uniformly
    is_left = ~np.isin(keys, drawn) & (masses > 0.0)
    keys, masses = keys[is_left], masses[is_left]
    if len(keys) < count:
        most = len(drawn) + len(keys)
        raise FieldError(
            "batch_size", f"at most {most:,}, because only as many rows have mass", f"{len(drawn) + count:,}"
        )
    with np.errstate(over="ignore"):
        first = np.argsort(random.exponential(size=len(keys)) / masses)[:count]
    return Drawn(keys[first], np.maximum(masses[first] / total, LEAST_PROBABILITY))
