"""Finds the episode of a row: searches outward from that row for others of its stream and episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from replay_client._transport.call import Operation
from replay_client.batch import Rows

_FIRST_ROWS: Final = 256
"""Rows to search first in each direction. Each further search covers twice as many."""
_MOST_ROWS: Final = 1 << 13
"""Maximum rows to search at once."""

ReadRows = Callable[[NDArray[np.int64]], Operation[Rows]]
"""Reads the live rows with these keys, without columns."""


def keys_of_episode(read: ReadRows, key: NDArray[np.int64]) -> Operation[NDArray[np.int64]]:
    """Return the keys of the live rows of an episode, int64[n], ascending.

    ``key``, int64[1], is that of any row of the episode; if it is not live, there are no keys.
    """
    row = yield from read(key)
    if not row.batch_size:
        return row.row_keys
    before = yield from _keys_beside(read, row, -1)
    after = yield from _keys_beside(read, row, 1)
    return np.concatenate([before[::-1], row.row_keys, after])


def _keys_beside(read: ReadRows, row: Rows, direction: int) -> Operation[NDArray[np.int64]]:
    """Find the rows of an episode inserted before (-1) or after (1) one of them; return their keys, nearest first."""
    at, count, found = int(row.row_keys[0]), _FIRST_ROWS, [row.row_keys[:0]]
    is_complete = _has_outermost(row, np.array([True]), direction)
    while not is_complete:
        keys = at + direction * np.arange(1, count + 1)
        rows = yield from read(keys)
        is_of_stream = rows.streams == row.streams[0]
        is_of_episode = is_of_stream & (rows.episodes == row.episodes[0])
        found.append(rows.row_keys[is_of_episode])
        is_complete = (
            not rows.batch_size
            or rows.row_keys[-1] != keys[-1]  # there are no live rows beyond
            or bool((is_of_stream & ~is_of_episode).any())
            or _has_outermost(rows, is_of_episode, direction)
        )
        at, count = int(keys[-1]), min(2 * count, _MOST_ROWS)
    return np.concatenate(found)


def _has_outermost(rows: Rows, is_of_episode: NDArray[np.bool_], direction: int) -> bool:
    """Whether these rows include the first (-1) or the last (1) row of the episode."""
    assert rows.steps is not None
    assert rows.ends is not None
    outermost = rows.steps == 0 if direction < 0 else rows.ends != 0
    return bool((outermost & is_of_episode).any())
