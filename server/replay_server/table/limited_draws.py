"""Draws from a table that limits how often each row is drawn: one row after another.

A row that had its last draw is out of the draws that follow, as if it had been evicted. So a draw may have to take some
of its rows from the mass of the others.
"""

from __future__ import annotations

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
    """Draw as many rows as there are points, and none of them more often than it has draws left.

    This changes no state: it takes rows out of the index for the time of the draw.

    Args:
        index: has the masses of the rows.
        items: the items of the table, which have as many draws left.
        points: float64[n] in [0, 1). The same points draw the same rows of the same table.
        priorities: float64[slots], the priorities of all slots.
        live: the live rows.

    Returns:
        Drawn rows. The probabilities are fractions of the mass before the draw.

    Raises:
        FieldError: too few rows have mass.
    """
    random, count, total = np.random.default_rng(points.view(np.uint64)), len(points), index.total_mass
    keys, probabilities = NO_KEYS, np.empty(0)
    out, priorities_of_out = NO_KEYS, np.empty(0)
    try:
        while len(keys) < count:
            if index.total_mass <= 0.0:
                raise FieldError("batch_size", f"at most {len(keys):,}, because no other rows have mass", f"{count:,}")
            share = index.total_mass / total
            drawn = index.draw(points[:_RANKED_AT_ONCE] if index.is_ranked else points, live)
            all_keys = np.concatenate([keys, drawn.keys])
            is_left, spent = _checked(all_keys, items.left(all_keys), len(keys) if index.is_ranked else None)
            keys = all_keys[is_left]
            probabilities = np.concatenate([probabilities, drawn.probabilities * share])[is_left]
            priorities_of_out = np.append(priorities_of_out, priorities[spent % live.slots])
            out = np.append(out, spent)
            index.clear(spent)
            points = random.random(count - len(keys))
    finally:
        if len(out):
            index.write(out, priorities_of_out)
    return Drawn(keys, probabilities)


def _checked(
    keys: NDArray[np.int64], left: NDArray[np.int64], ranked_from: int | None
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Find the draws that are allowed, and rows to take out of the index.

    Args:
        keys: int64[n], drawn rows.
        left: int64[n], how many draws each of them has left.
        ranked_from: if the mass of a row depends on others, the number of draws that are known to be allowed: then the
            draws after the first row that has its last draw are not, because they had another mass.

    Returns:
        bool[n], and int64[m].
    """
    earlier = _repeats(keys)
    is_left = earlier < left
    if ranked_from is None:
        return is_left, np.unique(keys[~is_left])
    last = ranked_from + np.flatnonzero(earlier[ranked_from:] + 1 >= left[ranked_from:])[:1]
    if len(last):
        is_left[int(last[0]) + 1 :] = False
    return is_left, keys[last]


def _repeats(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n]: for each key, how often it occurs before."""
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    begins = np.flatnonzero(np.append(True, in_order[1:] != in_order[:-1]))
    repeats = np.empty(len(keys), np.int64)
    repeats[order] = np.arange(len(keys)) - np.repeat(begins, np.diff(np.append(begins, len(keys))))
    return repeats
