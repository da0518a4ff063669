"""Draws from a table that limits how often each row is drawn: one row after another.

A row that had its last draw is out of the draws that follow, as if it had been evicted. So a draw may have to take some
of its rows from the mass of the others.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray
from replay_proto.errors import FieldError

from replay_server.backends.index import Drawn, LiveRows, PriorityIndex
from replay_server.table.draws import NO_KEYS
from replay_server.table.items.limited import LimitedItems

_RANKED_AT_ONCE: Final = 16
"""Rows of a ranked table that are drawn at once. Those after a row without draws left have to be drawn again."""


def draw_limited(
    index: PriorityIndex,
    items: LimitedItems,
    points: NDArray[np.float64],
    priorities: NDArray[np.float64],
    live: LiveRows,
) -> Drawn:
    """Draw as many rows as there are points, float64[n] in [0, 1), and none more often than it has draws left.

    This changes no state: it takes rows out of the index for the time of the draw. The items must have as many draws
    left. The same points draw the same rows of the same table. The probabilities are fractions of the mass before the
    draw. If too few rows have mass, the draw is refused.
    """
    random, count, total = np.random.default_rng(points.view(np.uint64)), len(points), index.total_mass
    found = _Found(items)
    out: list[NDArray[np.int64]] = []
    priorities_of_out: list[NDArray[np.float64]] = []
    at_once = _RANKED_AT_ONCE if index.is_ranked else count
    try:
        while found.count < count:
            if index.total_mass <= 0.0:
                raise FieldError(
                    "batch_size", f"at most {found.count:,}, because no other rows have mass", f"{count:,}"
                )
            share = index.total_mass / total
            drawn = index.draw(points[:at_once], live)
            before = found.count
            spent = found.add_ranked(drawn, share) if index.is_ranked else found.add(drawn, share)
            if index.is_ranked:  # where most rows have one draw left, most of those drawn at once are drawn in vain
                at_once = min(2 * (found.count - before), _RANKED_AT_ONCE)
            out.append(spent)
            priorities_of_out.append(priorities[spent % live.slots])
            index.clear(spent)
            points = random.random(min(at_once, count - found.count))
    finally:
        if out:
            index.write(np.concatenate(out), np.concatenate(priorities_of_out))
    return found.drawn()


class _Found:
    """The rows that a draw has so far."""

    def __init__(self, items: LimitedItems) -> None:
        self.count = 0
        """Number of draws."""
        self._items = items
        self._keys: list[NDArray[np.int64]] = []
        self._probabilities: list[NDArray[np.float64]] = []
        self._times: Counter[int] = Counter()  # of a ranked table: how often each row was drawn

    def drawn(self) -> Drawn:
        """Return all rows."""
        return Drawn(np.concatenate([NO_KEYS, *self._keys]), np.concatenate([np.empty(0), *self._probabilities]))

    def add(self, drawn: Drawn, share: float) -> NDArray[np.int64]:
        """Add the draws that are allowed, and return rows to take out of the index: those that were drawn too often.

        ``share`` is the mass of the draw as a fraction of the mass before all draws.
        """
        keys = np.concatenate([*self._keys, drawn.keys])
        is_left = (_repeats(keys) < self._items.left(keys))[self.count :]
        self._take(drawn.keys[is_left], drawn.probabilities[is_left] * share)
        return np.unique(drawn.keys[~is_left])

    def add_ranked(self, drawn: Drawn, share: float) -> NDArray[np.int64]:
        """Add draws until a row has its last draw, and return this row, which is to be taken out of the index.

        The mass of each row depends on the others, so the draws after it had another mass.
        """
        taken, spent = len(drawn.keys), NO_KEYS
        for place, (key, left) in enumerate(
            zip(drawn.keys.tolist(), self._items.left(drawn.keys).tolist(), strict=True)
        ):
            self._times[key] += 1
            if self._times[key] >= left:
                taken, spent = place + 1, drawn.keys[place : place + 1]
                break
        self._take(drawn.keys[:taken], drawn.probabilities[:taken] * share)
        return spent

    def _take(self, keys: NDArray[np.int64], probabilities: NDArray[np.float64]) -> None:
        self._keys.append(keys)
        self._probabilities.append(probabilities)
        self.count += len(keys)


def _repeats(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n]: for each key, how often it occurs before."""
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    begins = np.flatnonzero(np.append(True, in_order[1:] != in_order[:-1]))
    repeats = np.empty(len(keys), np.int64)
    repeats[order] = np.arange(len(keys)) - np.repeat(begins, np.diff(np.append(begins, len(keys))))
    return repeats
