"""Computes the distribution of a table's priorities in a worker thread, with bounded memory.

    seen = look(table.live, table.directory.priorities, random)     # in a worker thread
    ranked = rank(seen.still_live(table.oldest))                    # in a worker thread again

The table may change meanwhile. A slot is reused only after its row is evicted, so a copied value is valid if its row is
still live afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.index import DEAD_PRIORITY, LiveRows
from replay_server.table.table import Table

_PRIORITIES = 4096
"""Maximum number of priorities in a sample."""
_AGES = 257
"""Maximum number of ages in a sample. They divide the rows, from the newest to the oldest, into 256 equal steps."""


def some_priorities(table: Table, random: np.random.Generator) -> NDArray[np.float64]:
    """Return float64[n]: the priorities of all drawable rows or, in a large table, of a random sample of them."""
    if table.size <= _PRIORITIES:
        keys = np.arange(table.oldest, table.inserted)
    else:
        keys = random.integers(table.oldest, table.inserted, _PRIORITIES)
    priorities = table.priorities(keys)
    drawable: NDArray[np.float64] = priorities[priorities != DEAD_PRIORITY]
    return drawable


def some_ages_s(table: Table) -> NDArray[np.float64]:
    """Return float64[n]: ages in seconds of evenly spaced live rows, newest first."""
    if not table.size:
        return np.empty(0)
    keys = np.linspace(table.inserted - 1, table.oldest, min(table.size, _AGES)).round().astype(np.int64)
    return table.figures.ages_s(keys)


MOST_LOOKED_AT = 1 << 20
"""Maximum number of priorities to copy and sort; larger tables are sampled."""
LARGEST_ROWS = 10
"""Number of rows with the largest priorities to report, unless the caller requests another number."""
MOST_LARGEST_ROWS = 100
"""Maximum number of such rows that a caller may request."""
_CANDIDATES = 160
"""Rows with the largest priorities to keep per piece. This exceeds `MOST_LARGEST_ROWS`, because some may be evicted
before they are reported."""
_PIECE_ROWS = 1 << 18
"""Rows copied per step."""
_EVEN_RANKS = 512
"""Number of evenly spaced ranks to report."""
_GROWING_RANKS = 256
"""Number of logarithmically spaced ranks to report, in addition to the evenly spaced ones."""


@dataclass(frozen=True)
class Rows:
    """Keys and priorities of some rows."""

    keys: NDArray[np.int64]
    """int64[n]: key of each row."""
    priorities: NDArray[np.float64]
    """float64[n]: priority of each row."""

    def only(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> Rows:
        """Return the rows that a mask or an array of positions selects."""
        return Rows(self.keys[which], self.priorities[which])


@dataclass(frozen=True)
class Seen:
    """Copied priorities of a table."""

    live: LiveRows
    """The live rows when copying began."""
    drawable: int
    """Number of drawable rows among them."""
    rows: Rows
    """All drawable rows, or a sample."""
    candidates: Rows
    """Rows that may have one of the largest priorities."""

    def still_live(self, oldest: int) -> Seen:
        """Return a copy without the rows before the key ``oldest``, which have been evicted."""
        gone = min(max(0, oldest - self.live.oldest), self.live.size)
        if not gone:
            return self
        live = LiveRows(self.live.oldest + gone, self.live.size - gone, self.live.slots)
        rows = self.rows.only(self.rows.keys >= oldest)
        drawable = round(self.drawable * live.size / self.live.size) if self.is_sample else len(rows.keys)
        return Seen(live, drawable, rows, self.candidates.only(self.candidates.keys >= oldest))

    @property
    def is_sample(self) -> bool:
        """Whether `rows` are a sample."""
        return self.live.size > MOST_LOOKED_AT


@dataclass(frozen=True)
class Ranked:
    """Selected ranks of a table, and the priority at each."""

    looked_at: int
    """Number of rows that the ranks are based on."""
    ranks: NDArray[np.int64]
    """int64[m], ascending. Ranks of rows in `largest` are exact; other ranks are exact only if all rows were copied."""
    priorities: NDArray[np.float64]
    """float64[m]: the priority at each rank."""
    largest: Rows
    """The rows at the first ranks."""


def look(live: LiveRows, priorities: NDArray[np.float64], random: np.random.Generator) -> Seen:
    """Copy the priorities of all live rows or, in a larger table, of `MOST_LOOKED_AT` rows of all ages alike."""
    kept, candidates, drawable = [], [], 0
    for first in range(0, live.size, _PIECE_ROWS):
        keys = np.arange(live.oldest + first, live.oldest + min(first + _PIECE_ROWS, live.size))
        piece = Rows(keys, np.take(priorities, keys % live.slots))
        if (piece.priorities == DEAD_PRIORITY).any():  # rows that cannot be drawn, in a table of steps
            piece = piece.only(piece.priorities != DEAD_PRIORITY)
        drawable += len(piece.keys)
        candidates.append(_largest_of(piece))
        if live.size > MOST_LOOKED_AT and len(piece.keys):
            chosen = len(piece.keys) * MOST_LOOKED_AT // live.size
            piece = piece.only(random.integers(0, len(piece.keys), chosen))
        kept.append(piece)
    return Seen(live, drawable, _joined(kept), _joined(candidates))


def rank(seen: Seen, largest_rows: int = LARGEST_ROWS) -> Ranked:
    """Sort the rows, and select the ranks to report. These include the first ``largest_rows`` ranks."""
    looked_at, size = len(seen.rows.keys), seen.drawable
    largest = seen.candidates.only(np.lexsort((-seen.candidates.keys, -seen.candidates.priorities))[:largest_rows])
    descending = np.sort(seen.rows.priorities)[::-1]
    places = _shown(looked_at)
    # Counted from 0, the i-th of n rows sampled from N has a rank of about (i + 1/2) N / n, rounded down.
    ranks = 1 + ((places + 0.5) * (size / max(1, looked_at))).astype(np.int64)
    beyond = ranks > len(largest.keys)
    return Ranked(
        looked_at=looked_at,
        ranks=np.concatenate([np.arange(1, len(largest.keys) + 1), ranks[beyond]]),
        priorities=np.concatenate([largest.priorities, descending[places[beyond]]]),
        largest=largest,
    )


def _largest_of(rows: Rows) -> Rows:
    """Return the `_CANDIDATES` rows with the largest priorities. Of rows with equal priority, prefer the newest.

    ``rows`` are ordered from the oldest to the newest.
    """
    if len(rows.keys) <= _CANDIDATES:
        return rows
    least = np.partition(rows.priorities, -_CANDIDATES)[-_CANDIDATES]
    above = np.flatnonzero(rows.priorities > least)
    equal = np.flatnonzero(rows.priorities == least)
    return rows.only(np.concatenate([above, equal[len(equal) - (_CANDIDATES - len(above)) :]]))


def _shown(count: int) -> NDArray[np.int64]:
    """Return the positions to report among ``count`` sorted rows."""
    if count == 0:
        return np.empty(0, np.int64)
    even = np.linspace(0, count - 1, min(count, _EVEN_RANKS))
    growing = np.geomspace(1, count, _GROWING_RANKS) - 1
    return np.unique(np.concatenate([even, growing]).round().astype(np.int64))


def _joined(parts: list[Rows]) -> Rows:
    none = Rows(np.empty(0, np.int64), np.empty(0))
    return Rows(
        np.concatenate([none.keys, *(part.keys for part in parts)]),
        np.concatenate([none.priorities, *(part.priorities for part in parts)]),
    )
