"""A queue of windows: it delivers the windows of a table of steps in the order in which they became complete.

A window is complete when its last row is stored, so the windows of a stream are delivered in order. If a row completes
several windows, because it closes an episode, the one with the earliest anchor comes first.

Inserts wait while they would overwrite a row of a window that was not delivered. Windows that are not complete yet do
not make inserts wait, because the stream of an actor that has died never continues: such a window is lost, and counted,
when as many rows as the table's capacity have been inserted after its first one. Rows stay live for as long, even after
they were delivered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay_server import errors
from replay_server.backends.index import Drawn, LiveRows
from replay_server.storage.delivery_log import DeliveryLog
from replay_server.storage.header import Header
from replay_server.storage.table_config import TableConfig
from replay_server.table.draws import Draw, Points
from replay_server.table.items.items import Items
from replay_server.table.items.step_windows import StepWindows
from replay_server.table.oldest_first import Deliveries, Queue

_COMPACTED: Final = 1_024
"""Removed windows after which their memory is freed."""


class _Window(NamedTuple):
    """A complete window."""

    number: int
    """of its first delivery"""
    anchor: int
    first: int
    """key of its first row"""


class WindowQueue(Queue):
    """Chooses the windows that a queue delivers, and is the queue's gate.

    Deliveries are numbered in their order, with gaps. The first delivery of a window has the number ``(key * (forward +
    1) + forward - after) * times``: ``key`` is that of the window's last row, and ``after`` the number of rows after
    its anchor, which differs among the windows that a row completes. The number of the next delivery is stored before
    a reply is sent, so no window is delivered too often, and a restarted server finds those that are left.
    """

    def __init__(self, config: TableConfig, header: Header, draws: DeliveryLog, items: StepWindows) -> None:
        """Start without windows; `load` adds those of a stored table."""
        super().__init__(config, header, draws)
        assert config.steps is not None
        self._items = items
        self._forward = config.steps.window.forward
        self._period = config.steps.window.period
        self._waiting: deque[_Window] = deque()  # with deliveries left
        self._done: list[_Window] = []  # without; the rows of those before `_first_done` are gone
        self._first_done = 0
        self._offset = 0  # deliveries of the first window that is waiting
        self._firsts = _Minima()

    def load(self, live: LiveRows, drawable: NDArray[np.bool_]) -> None:
        """Find the windows with deliveries left among the live rows of a stored table.

        ``drawable``, bool[size], says which rows have a complete window. Those without deliveries left are unset.
        """
        following = self._header.state.delivered
        keys = live.oldest + np.flatnonzero(drawable)
        numbers, firsts = self._numbered(keys)
        are_left = numbers + self._times > following
        self._items.retire(keys[~are_left])
        drawable[keys[~are_left] - live.oldest] = False
        self._done.extend(_in_order(numbers[~are_left], keys[~are_left], firsts[~are_left]))
        self._append(numbers[are_left], keys[are_left], firsts[are_left])
        if self._waiting:
            self._offset = max(0, following - self._waiting[0].number)
        self._expect_readers()

    def arrived(self, keys: NDArray[np.int64]) -> None:
        """Add the windows that an insert has completed, and evict rows beyond the capacity. keys: of the anchors."""
        if len(keys):
            numbers, firsts = self._numbered(keys)
            self._append(numbers, keys, firsts)
        self._evict()

    def begin_anew(self, items: Items) -> None:
        """Forget all windows, because the table is being reset."""
        super().begin_anew(items)
        assert isinstance(items, StepWindows)
        self._items = items
        self._waiting.clear()
        self._done.clear()
        self._first_done = self._offset = 0
        self._firsts = _Minima()

    def check_draw(self, rows: int) -> None:
        """Refuse a draw of more windows than certainly become complete while the table has room for their rows."""
        rows_left = self._config.capacity - self._items.rows_of_open_windows(self._header.oldest)
        # Each window takes the steps of a period, and each episode a closing row.
        windows = max(1, rows_left // (self._period + 1))
        most = (windows - 1) * self._times + 1
        if rows > most and rows > self._left:
            raise errors.too_large("sequences of one draw", most, rows, "capacity of the queue")

    def grant(self, rows: int) -> int:
        """Grant available deliveries, and reserve them for the draw."""
        granted = min(rows, self._left)
        self._granted += granted
        return granted

    def blocks_inserts(self, granted: int) -> bool:
        """Whether no other draw has windows, so that only this one can make room.

        The rows of its windows have left the capacity, but all rows after the first of them are still stored. If actors
        abandon most episodes, these fill the ring.
        """
        return granted == self._granted

    def draw(self, draw: Draw, points: Points, live: LiveRows) -> Drawn:
        """Return the anchors of the next windows to deliver."""
        count = len(points.fractions)
        places = (self._offset + np.arange(count)) // self._times
        anchors = np.array([each.anchor for each in islice(self._waiting, int(places[-1]) + 1)], np.int64)
        return Drawn(anchors[places], np.ones(count))

    def hand_out(self, rows: int, live_keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count deliveries of granted windows, and return the anchors of those without deliveries left."""
        self._granted -= rows
        windows, self._offset = divmod(self._offset + rows, self._times)
        done = [self._waiting.popleft() for _ in range(windows)]
        following = self._waiting[0].number if self._waiting else done[-1].number + self._times
        self._header.store("delivered", following + self._offset)
        self._done.extend(done)
        anchors = np.array([each.anchor for each in done], np.int64)
        self._items.retire(anchors)
        self._firsts.remove(windows)
        self._evict()
        return anchors

    def kept_less(self) -> None:
        """Let rows go that were kept for readers."""
        self._evict()

    @property
    def _left(self) -> int:
        """Number of deliveries that may be granted."""
        return len(self._waiting) * self._times - self._offset - self._granted

    @property
    def _room(self) -> int:
        """Number of rows that may be inserted now.

        Rows of granted windows no longer count towards the capacity, although they are still stored. Otherwise, a draw
        waiting for more windows and an insert waiting for room would deadlock.
        """
        inserted = self._header.inserted
        granted = (self._offset + self._granted) // self._times
        return min(
            self._firsts.least(granted, inserted) + self._config.capacity - inserted,
            self._first_needed + self._config.slots - inserted,
        )

    @property
    def _first_needed(self) -> int:
        """Key of the oldest row of windows that are waiting or kept for readers; if there is none, the next key."""
        first = self._firsts.least(0, self._header.inserted)
        return min(first, self.repeats.kept(first))

    def _following(self, rows: int) -> range:
        """Return the numbers of the next deliveries."""
        windows, more = divmod(self._offset + rows - 1, self._times)
        return range(self._waiting[0].number + self._offset, self._waiting[windows].number + more + 1)

    def _stored(self, numbers: range) -> Deliveries | None:
        """Return deliveries by number; None if rows of them were removed."""
        after = bisect_left(self._done, numbers.stop, self._first_done, key=_number)
        begin = bisect_left(self._done, numbers.start - self._times + 1, self._first_done, after, key=_number)
        found = [*self._done[begin:after], *islice(self._waiting, bool(self._offset))]
        found = [each for each in found if self._times_in(each, numbers)]
        first = min((each.first for each in found), default=-1)
        if first < self._header.oldest:
            return None
        anchors = np.array([each.anchor for each in found], np.int64)
        return Deliveries(np.repeat(anchors, [self._times_in(each, numbers) for each in found]), first)

    def _times_in(self, window: _Window, numbers: range) -> int:
        """Return how many of these deliveries are of a window."""
        return max(0, min(window.number + self._times, numbers.stop) - max(window.number, numbers.start))

    def _evict(self) -> None:
        """Let rows go that are beyond the capacity, and belong to no window that is waiting."""
        state = self._header.state
        floor = min(state.inserted - self._config.capacity, self._first_needed)
        if floor > state.floor:
            self._header.store("floor", floor)
            state = self._header.state
        while self._first_done < len(self._done) and self._done[self._first_done].first < state.floor:
            self._first_done += 1
        if self._first_done > _COMPACTED:
            del self._done[: self._first_done]
            self._first_done = 0

    def _numbered(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return int64[n], int64[n]: number of the first delivery, and key of the first row, of windows by anchor."""
        windows = self._items.windows(keys)
        ends = np.cumsum(windows.before + windows.after + 1, dtype=np.int64)
        last = windows.keys[ends - 1]
        first = windows.keys[ends - 1 - windows.before - windows.after]
        return (last * (self._forward + 1) + self._forward - windows.after) * self._times, first

    def _append(self, numbers: NDArray[np.int64], keys: NDArray[np.int64], firsts: NDArray[np.int64]) -> None:
        for each in _in_order(numbers, keys, firsts):
            self._waiting.append(each)
            self._firsts.append(each.first)


def _number(window: _Window) -> int:
    return window.number


def _in_order(numbers: NDArray[np.int64], keys: NDArray[np.int64], firsts: NDArray[np.int64]) -> Iterator[_Window]:
    """Yield windows in the order of their deliveries: int64[n] each of first delivery, anchor and first row."""
    for place in np.argsort(numbers).tolist():
        yield _Window(int(numbers[place]), int(keys[place]), int(firsts[place]))


class _Minima:
    """Numbers in order, of which the first ones are removed: returns the least one from any place on."""

    def __init__(self) -> None:
        # Those that are less than all later ones, oldest first: their places, counted from the first number ever, and
        # their values. The ones before `_head` were removed.
        self._places: list[int] = []
        self._values: list[int] = []
        self._head = 0
        self._removed = self._appended = 0

    def append(self, value: int) -> None:
        """Add a number."""
        while len(self._values) > self._head and self._values[-1] >= value:
            self._places.pop()
            self._values.pop()
        self._places.append(self._appended)
        self._values.append(value)
        self._appended += 1

    def remove(self, count: int) -> None:
        """Remove the first numbers."""
        self._removed += count
        self._head = bisect_left(self._places, self._removed, self._head)
        if self._head > _COMPACTED:
            del self._places[: self._head], self._values[: self._head]
            self._head = 0

    def least(self, place: int, otherwise: int) -> int:
        """Return the least number from a place on, counted from the first one; if there is none, ``otherwise``."""
        found = bisect_left(self._places, self._removed + place, self._head)
        return self._values[found] if found < len(self._values) else otherwise
