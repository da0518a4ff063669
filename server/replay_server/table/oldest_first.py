"""A queue: rows go out oldest first, each so many times, and inserts wait while it is full."""

from __future__ import annotations

import asyncio

import numpy as np
from numpy.typing import NDArray

from replay_server import errors
from replay_server.backends.index import Drawn, LiveRows
from replay_server.errors import Lack
from replay_server.storage.header import Header
from replay_server.storage.table_config import TableConfig
from replay_server.table.draws import Draw
from replay_server.table.gates import Gate


class OldestFirst(Gate):
    """The order of a queue, which is also its gate: no insert over rows not yet gone.

    Each time a row goes out counts as a delivery. Deliveries are numbered: row k has those from ``k * times`` on. The
    number of the next one is stored before a reply is sent, in one word from which the oldest live row follows: no row
    goes out more often than it may, whatever happens.

    Rows that are granted make room at once, though they are still there: a draw that waits for more rows, and an
    insert that waits for room, would otherwise wait for each other. The ring's slack is what that takes.
    """

    copyable = False

    def __init__(self, config: TableConfig, header: Header) -> None:
        """Go on from the state in ``header``."""
        super().__init__(header)
        self.turn = asyncio.Lock()
        self._times = config.times
        self._config = config

    @property
    def gate(self) -> Gate:
        """Itself."""
        return self

    def check_draw(self, rows: int) -> None:
        """Refuse more than a full queue, its oldest row almost gone, has to deliver."""
        most = (self._config.capacity - 1) * self._times + 1
        if rows > most:
            raise errors.too_large("rows of one draw", most, rows, "capacity of the queue")

    def grant(self, rows: int) -> int:
        """Allow as many deliveries as there are; they are nobody else's until they are given back."""
        granted = min(rows, self._header.inserted * self._times - self._next - self._granted)
        self._granted += granted
        return granted

    def count_drawn(self, rows: int) -> None:
        """Nothing: they count when they are delivered."""

    def count_failed(self, rows: int) -> None:
        """Leave them to others."""
        self.give_back(rows)

    def choose_points(self, draw: Draw, count: int) -> NDArray[np.float64]:
        """Any points: rows go out by age."""
        return np.zeros(count * draw.batch_size)

    def draw(self, points: NDArray[np.float64], live: LiveRows) -> Drawn:
        """The rows that go out next, oldest first."""
        return Drawn(np.arange(self._next, self._next + len(points)) // self._times, np.ones(len(points)))

    def smallest_probability(self, live: LiveRows) -> float:
        """1: a row that goes out was bound to."""
        return 1.0

    def probabilities(
        self, priorities: NDArray[np.float64], ranks: NDArray[np.int64], live: LiveRows
    ) -> NDArray[np.float64]:
        """1 for every row, as in a batch."""
        return np.ones(len(priorities))

    def hand_out(self, rows: int) -> None:
        """Take the next rows, which were granted, out of the queue: they are live only as far as they go out again."""
        self._granted -= rows
        self._header.store("delivered", self._next + rows)

    def draw_lacks(self, rows: int, granted: int) -> Lack:
        """``rows``, each as often as it goes out."""
        return Lack("rows", granted, rows)

    def check_insert(self, rows: int) -> None:
        """Refuse what may never fit beside the rows that a draw which waits was granted."""
        largest = min(self._config.capacity, self._config.slack)
        if rows > largest and not self.insert_allowed(rows):
            raise errors.too_large("rows of one insert", largest, rows, "capacity of the queue")

    def insert_allowed(self, rows: int) -> bool:
        """Whether there is room: among the rows that are nobody's yet, and in the ring."""
        return rows <= self._room

    def insert_lacks(self, rows: int) -> Lack:
        """``room``."""
        return Lack("room", self._room, rows)

    @property
    def _room(self) -> int:
        """Rows that may be inserted now."""
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
