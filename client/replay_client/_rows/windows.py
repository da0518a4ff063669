"""Finds the rows from which the columns of a batch are built, in the windows that were drawn.

    windows = Windows(message, np.arange(r), steps.window)
    places = windows.places(Layout(stacked=4))      # the last four rows up to each anchor
    source.take(places.rows, axis=0, out=column)
    column[places.padded] = 0

A window consists of consecutive steps of one episode, oldest first. The windows of a batch are concatenated. A column
has one or more positions per window (the positions of a sequence), and each position has one or more rows (of a stack).
Positions without a row, before or after the episode, are padded.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from replay_proto.steps import WindowShape
from replay_proto.v1 import replay_pb2

from replay_client.errors import InternalServerError

Indices = NDArray[np.int64]

_KEY_BYTES: Final = 8


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

    def at(self, has_row: NDArray[np.bool_]) -> Places:
        """Return the rows of those positions, bool[windows * positions], that have one."""
        rows = self.rows.reshape(len(has_row), -1)[has_row].reshape(-1)
        padded = None if self.padded is None else self.padded.reshape(len(has_row), -1)[has_row].reshape(-1)
        return Places(rows, padded)


class Windows:
    """The windows of one batch of b items."""

    def __init__(
        self, message: replay_pb2.Batch, rows: Indices, shape: WindowShape, *, starts_apart: bool = False
    ) -> None:
        """Read the windows of a batch; raise `InternalServerError` if they do not match the rows.

        ``rows``, int64[r], are the indices of the windows' rows in the stored columns. ``shape`` is that of a whole
        window; the beginning or end of an episode makes windows shorter. ``starts_apart`` says whether columns with
        ``at="start"`` are stored separately, with one value per window.
        """
        self._ends = message.ends
        self._rows = rows
        self._shape = shape
        self._starts_apart = starts_apart
        self.before: NDArray[np.int32] = np.frombuffer(message.before, "<i4")
        """int32[b]: number of rows before each anchor."""
        self.after: NDArray[np.int32] = np.frombuffer(message.after, "<i4")
        """int32[b]: number of rows after each anchor."""
        self._grid: Indices | None = None
        """int64[b, rows]: the rows of each window, if all windows are whole; otherwise None."""
        # Most batches have only whole windows, and comparing bytes is much faster than adding numbers.
        lengths = message.before, message.after, len(message.keys), len(rows)
        if lengths == _lengths_of_whole(len(self), shape):
            self._grid = rows.reshape(-1, shape.rows)
        else:
            self._check(len(message.keys) // _KEY_BYTES)

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def are_whole(self) -> bool:
        """Whether all windows have the full length: none is cut off by the beginning or end of an episode."""
        return self._grid is not None

    @cached_property
    def _lasts(self) -> Indices:
        lengths = self.before + self.after + np.int32(1)
        return lengths.cumsum(dtype=np.int64) - 1

    @cached_property
    def _anchors(self) -> Indices:
        return self._lasts - self.after

    @cached_property
    def _firsts(self) -> Indices:
        return self._anchors - self.before

    @property
    def is_closed(self) -> NDArray[np.bool_]:
        """bool[b]: whether the last row closes the episode."""
        is_closed: NDArray[np.bool_] = np.frombuffer(self._ends, "u1") != replay_pb2.EPISODE_END_UNSPECIFIED
        return is_closed

    @property
    def is_terminated(self) -> NDArray[np.bool_]:
        """bool[b]: whether the last row closes the episode with a terminal state."""
        is_terminated: NDArray[np.bool_] = np.frombuffer(self._ends, "u1") == replay_pb2.EPISODE_END_TERMINATED
        return is_terminated

    @property
    def is_any_terminated(self) -> bool:
        """Whether `is_terminated` is True for any window."""
        return replay_pb2.EPISODE_END_TERMINATED in self._ends

    def has_row(self, before: int, after: int) -> NDArray[np.bool_]:
        """Return which positions around each anchor have a row: bool[b, before + 1 + after]."""
        positions = np.arange(-before, after + 1)
        has_row: NDArray[np.bool_] = (positions >= -self.before[:, None]) & (positions <= self.after[:, None])
        return has_row

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
        """Find the rows of the columns with this layout."""
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

    def _check(self, items: int) -> None:
        are_complete = len(self.before) == len(self.after) == len(self) == items
        if not are_complete or len(self) == 0 or int(self._lasts[-1]) + 1 != len(self._rows):
            raise InternalServerError(f"the server sent windows that do not match their {len(self._rows)} rows")

    def _in_grid(self, grid: Indices, layout: Layout) -> Indices:
        """Find the rows if all windows are whole: int64[b, positions, stacked], or int64[b, positions]."""
        base = grid.shape[1] - 1 if layout.ahead else self._shape.backward
        rows = grid[:, base - layout.before + 1 - layout.stacked : base + layout.after + 1]
        if layout.stacked == 1 or layout.before == layout.after == 0:
            return rows
        return sliding_window_view(rows, layout.stacked, axis=1)

    def _found(self, rows: Indices, padded: NDArray[np.bool_] | None) -> Places:
        flags = padded.repeat(rows.size // padded.size) if padded is not None and padded.any() else None
        return Places(self._rows.take(rows.ravel()), flags)


@lru_cache
def _lengths_of_whole(count: int, shape: WindowShape) -> tuple[bytes, bytes, int, int]:
    """Return what a message with only whole windows has: `before`, `after`, bytes of keys, and number of rows."""
    before, after = (np.full(count, rows, "<i4").tobytes() for rows in (shape.backward, shape.forward))
    return before, after, count * _KEY_BYTES, count * shape.rows
