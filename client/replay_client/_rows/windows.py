"""Finds the rows from which the columns of a batch are built, in the windows that were drawn.

    windows = Windows(before, after, ends, np.arange(r), steps.window)
    places = windows.places(Layout(stacked=4))      # the last four rows up to each anchor
    source.take(places.rows, axis=0, out=column)
    column[places.padded] = 0

A window consists of consecutive steps of one episode, oldest first. The windows of a batch are concatenated. A column
has one or more positions per window (the positions of a sequence), and each position has one or more rows (of a stack).
Positions without a row, before or after the episode, are padded.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from replay_proto.steps import WindowShape
from replay_proto.v1 import replay_pb2

Indices = NDArray[np.int64]


class Layout(NamedTuple):
    """Which rows a column takes from each window.

    Positions are relative to a base row: the window's anchor or, if ``ahead``, its last row.
    """

    before: int = 0
    """Number of positions before the base. Positions are consecutive steps."""
    after: int = 0
    """Number of positions after the base."""
    stacked: int = 1
    """Number of rows at each position: its own row, preceded by those of the steps before it."""
    repeats: bool = False
    """Whether a stack repeats the first row of the window in place of missing earlier rows; otherwise they are zero."""
    ahead: bool = False
    """Whether the base is the last row of the window instead of its anchor."""


class Places(NamedTuple):
    """The rows of a column, sorted by window, then by position, and oldest first within a stack."""

    rows: Indices
    """int64[windows * positions * stacked]: index of each row in the stored column; arbitrary where padded."""
    padded: NDArray[np.bool_] | None
    """bool, of the same shape: which entries have no row. None: all have one."""


class Windows:
    """The windows of one batch of b items."""

    def __init__(
        self,
        before: NDArray[np.int32],
        after: NDArray[np.int32],
        ends: NDArray[np.uint8],
        rows: Indices,
        shape: WindowShape,
        *,
        starts_apart: bool = False,
    ) -> None:
        """Describe the windows.

        Args:
            before: int32[b], number of rows before each anchor.
            after: int32[b], number of rows after each anchor.
            ends: uint8[b], the `EpisodeEnd` of the last row of each window.
            rows: int64[r], index of each row of the windows in the stored columns.
            shape: shape of a whole window. The beginning or end of an episode makes windows shorter.
            starts_apart: whether columns with ``at="start"`` are stored separately, with one value per window.
        """
        self.after = after
        """int32[b]: number of rows after each anchor."""
        self.before = before
        """int32[b]: number of rows before each anchor."""
        self._ends = ends
        self._rows = rows
        self._shape = shape
        self._starts_apart = starts_apart
        self._places: dict[Layout, Places] = {}
        self.row_count = int((before + after).sum()) + len(after)
        """Number of rows of all windows together."""
        width = shape.backward + 1 + shape.forward
        self._grid = rows.reshape(-1, width) if self.row_count == len(after) * width == len(rows) else None
        """int64[b, width]: the rows of each window, if all windows are whole; otherwise None."""

    def __len__(self) -> int:
        return len(self.after)

    @property
    def are_whole(self) -> bool:
        """Whether all windows have the full length: none is cut off by the beginning or end of an episode."""
        return self._grid is not None

    @cached_property
    def _lasts(self) -> Indices:
        return np.cumsum(self.before + self.after, dtype=np.int64) + np.arange(len(self))

    @cached_property
    def _anchors(self) -> Indices:
        return self._lasts - self.after

    @cached_property
    def _firsts(self) -> Indices:
        return self._anchors - self.before

    @property
    def is_closed(self) -> NDArray[np.bool_]:
        """bool[b]: whether the last row closes the episode."""
        is_closed: NDArray[np.bool_] = self._ends != replay_pb2.EPISODE_END_UNSPECIFIED
        return is_closed

    @property
    def is_terminated(self) -> NDArray[np.bool_]:
        """bool[b]: whether the last row closes the episode with a terminal state."""
        is_terminated: NDArray[np.bool_] = self._ends == replay_pb2.EPISODE_END_TERMINATED
        return is_terminated

    def first_rows(self, before: int) -> Indices:
        """Return the indices, int64[b], of the rows from which columns with ``at="start"`` take their values.

        Each is the row ``before`` positions before the anchor. If the window begins later, it is the window's first
        row.
        """
        if self._starts_apart:
            return np.arange(len(self))
        return self._rows.take(self._anchors - np.minimum(self.before, before))

    def next_rows(self, count: int) -> Indices:
        """Return the indices, int64[count, b], of each anchor and the ``count - 1`` rows after it.

        Indices beyond the last row of a window are arbitrary.
        """
        rows: Indices
        if self._grid is not None:
            rows = self._grid[:, self._shape.backward : self._shape.backward + count].T
        elif count == 1:
            rows = self._rows.take(self._anchors)[None]
        else:
            rows = self._rows.take(np.minimum(self._anchors + np.arange(count)[:, None], self._lasts))
        return rows

    def places(self, layout: Layout) -> Places:
        """Find the rows of the columns with this layout. Results are cached."""
        found = self._places.get(layout)
        if found is None:
            found = self._places[layout] = self._placed(layout)
        return found

    def _placed(self, layout: Layout) -> Places:
        if self._grid is not None:
            return Places(self._in_grid(self._grid, layout).reshape(-1), None)
        base = self._lasts if layout.ahead else self._anchors
        if layout.stacked == 1 and not layout.before and not layout.after:
            return Places(self._rows[base], None)
        if not layout.before and not layout.after:
            wanted = base[:, None] + np.arange(1 - layout.stacked, 1)
            rows = np.maximum(wanted, self._firsts[:, None])
            return self._found(rows, None if layout.repeats else rows != wanted)
        firsts, lasts = self._firsts[:, None, None], self._lasts[:, None, None]
        places = (base[:, None] + np.arange(-layout.before, layout.after + 1))[:, :, None]
        wanted = places + np.arange(1 - layout.stacked, 1)
        rows = np.minimum(np.maximum(wanted, firsts), lasts)
        padded = (places < firsts) | (places > lasts)
        return self._found(rows, padded if layout.repeats else padded | (wanted < firsts))

    def _in_grid(self, grid: Indices, layout: Layout) -> Indices:
        """Find the rows if all windows are whole: int64[b, positions, stacked], or int64[b, positions]."""
        base = grid.shape[1] - 1 if layout.ahead else self._shape.backward
        rows = grid[:, base - layout.before + 1 - layout.stacked : base + layout.after + 1]
        if layout.stacked == 1 or layout.before == layout.after == 0:
            return rows
        return sliding_window_view(rows, layout.stacked, axis=1)

    def _found(self, rows: Indices, padded: NDArray[np.bool_] | None) -> Places:
        is_padded = padded is not None and bool(padded.any())
        flags = np.broadcast_to(padded, rows.shape).ravel() if padded is not None and is_padded else None
        return Places(self._rows.take(rows.ravel()), flags)
