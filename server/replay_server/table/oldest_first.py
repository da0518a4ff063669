"""A queue: it delivers the oldest rows first, each row a fixed number of times. Inserts wait while it is full."""

from __future__ import annotations

import asyncio
from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from replay_server import errors
from replay_server.backends.index import Drawn, LiveRows, PriorityIndex
from replay_server.errors import Lack
from replay_server.storage.header import Header
from replay_server.storage.table_config import TableConfig
from replay_server.table.draws import NO_KEYS, Draw, Points
from replay_server.table.gates import Gate
from replay_server.table.items.items import Items


class Queue(Gate):
    """Chooses what a queue delivers, and is the queue's gate. Inserts never overwrite what is to be delivered.

    Handing out a row or window once is one delivery.
    """

    copyable = False

    def __init__(self, config: TableConfig, header: Header) -> None:
        """Continue from the state in ``header``."""
        super().__init__(header)
        self.turn = asyncio.Lock()
        self._times = config.max_times
        self._config = config

    @property
    def gate(self) -> Gate:
        """This object, which is its own gate."""
        return self

    def replace_contents(self, index: PriorityIndex, items: Items) -> None:
        """Do nothing: draws are in order of age."""

    def count_drawn(self, rows: int) -> None:
        """Do nothing: rows are counted when they are delivered."""

    def count_failed(self, rows: int) -> None:
        """Make the rows available to other draws."""
        self.give_back(rows)

    def arrived(self, keys: NDArray[np.int64]) -> None:
        """Take notice of rows or windows that can now be drawn. keys: int64[n]."""

    def choose_points(self, draw: Draw, count: int) -> Points:
        """Return zeros: draws are in order of age, not by points."""
        return Points(np.zeros(count * draw.batch_size))

    @abstractmethod
    def draw(self, draw: Draw, points: Points, live: LiveRows) -> Drawn:
        """Return what is to be delivered next, for each point. This changes no state; see `hand_out`."""

    @abstractmethod
    def hand_out(self, rows: int, live_keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count ``rows`` deliveries that were granted: of the rows with these keys, int64[n], which are live.

        Return int64[n]: keys of live rows that can no longer be drawn.
        """

    def smallest_probability(self, live: LiveRows) -> float:
        """Return 1, because draws are deterministic."""
        return 1.0

    def probabilities(
        self, priorities: NDArray[np.float64], ranks: NDArray[np.int64], live: LiveRows
    ) -> NDArray[np.float64]:
        """Return 1 for every row, because draws are deterministic."""
        return np.ones(len(priorities))

    def draw_lacks(self, rows: int, granted: int) -> Lack:
        """Return how many deliveries are granted to the draw, and how many it needs."""
        return Lack("rows", granted, rows)

    def check_insert(self, rows: int) -> None:
        """Refuse an insert that might never fit.

        Rows granted to a waiting draw stay in the ring, so an insert can count on no more room than the slack.
        """
        largest = min(self._config.capacity, self._config.slack)
        if rows > largest and not self.insert_allowed(rows):
            raise errors.too_large("rows of one insert", largest, rows, "capacity of the queue")

    def insert_allowed(self, rows: int) -> bool:
        """Whether the rows fit into both the capacity and the ring."""
        return rows <= self._room

    def insert_lacks(self, rows: int) -> Lack:
        """Return for how many rows there is room now, and for how many rows the inserts need room."""
        return Lack("room", self._room, rows)

    @property
    @abstractmethod
    def _room(self) -> int:
        """Number of rows that may be inserted now."""


class OldestFirst(Queue):
    """Chooses the rows that a queue delivers.

    Deliveries are numbered from 0; the first delivery of row k has the number ``k * times``. The number of the next
    delivery determines the oldest live row. This number is stored before a reply is sent, so no row is delivered too
    often.

    Granted rows no longer count towards the capacity, although they are still stored. Otherwise, a draw waiting for
    more rows and an insert waiting for room would deadlock. The ring's slack has space for the new rows.
    """

    def check_draw(self, rows: int) -> None:
        """Refuse a draw of more rows than a full queue can always deliver.

        The oldest row of a full queue may have only one delivery left.
        """
        most = (self._config.capacity - 1) * self._times + 1
        if rows > most:
            raise errors.too_large("rows of one draw", most, rows, "capacity of the queue")

    def grant(self, rows: int) -> int:
        """Grant available deliveries, and reserve them for the draw."""
        granted = min(rows, self._header.inserted * self._times - self._next - self._granted)
        self._granted += granted
        return granted

    def draw(self, draw: Draw, points: Points, live: LiveRows) -> Drawn:
        """Return the next rows to deliver, oldest first."""
        count = len(points.fractions)
        return Drawn(np.arange(self._next, self._next + count) // self._times, np.ones(count))

    def hand_out(self, rows: int, live_keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count deliveries of granted rows. Rows without remaining deliveries are no longer live."""
        self._granted -= rows
        self._header.store("delivered", self._next + rows)
        return NO_KEYS

    @property
    def _room(self) -> int:
        """Number of rows that may be inserted now."""
        state = self._header.state
        kept = (self._next + self._granted) // self._times
        return min(
            kept + self._config.capacity - state.inserted,
            state.released(self._times) + self._config.slots - state.inserted,
        )

    @property
    def _next(self) -> int:
        """Number of the next delivery."""
        state = self._header.state
        return max(state.delivered, state.floor * self._times)
