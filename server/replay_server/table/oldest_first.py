"""A queue: it delivers the oldest rows first, each row a fixed number of times. Inserts wait while it is full."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay_server import errors
from replay_server.backends.index import Drawn, LiveRows, PriorityIndex
from replay_server.errors import Lack
from replay_server.storage.delivery_log import DeliveryLog, ReaderStamp
from replay_server.storage.header import Header
from replay_server.storage.table_config import TableConfig
from replay_server.table.draws import NO_KEYS, Draw, Points
from replay_server.table.gates import Gate
from replay_server.table.items.items import Items
from replay_server.table.repeated_draws import RepeatedDraws


class Deliveries(NamedTuple):
    """Rows or windows that were delivered, and are still stored."""

    keys: NDArray[np.int64]
    """int64[n]: key of each row, or of the anchor of each window."""
    first: int
    """Key of the oldest row."""


class Queue(Gate):
    """Chooses what a queue delivers, and is the queue's gate. Inserts never overwrite what is to be delivered.

    Handing out a row or window once is one delivery.
    """

    copyable = False

    def __init__(self, config: TableConfig, header: Header, draws: DeliveryLog) -> None:
        """Continue from the state in ``header`` and the recent ``draws``."""
        super().__init__(header)
        self.turn = asyncio.Lock()
        self.repeats = RepeatedDraws(draws)
        """Draws that readers may repeat."""
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

    def given_before(self, stamp: ReaderStamp, rows: int) -> NDArray[np.int64] | None:
        """Return the keys, int64[rows], that a draw was given before.

        Return None if the draw is new, if it asked for another number of rows, or if rows were overwritten.
        """
        numbers = self.repeats.find(stamp)
        found = None if numbers is None else self._stored(numbers)
        return None if found is None or len(found.keys) != rows else found.keys

    def note(self, stamp: ReaderStamp, rows: int) -> None:
        """Record that a draw of this many rows is about to be handed out."""
        self.repeats.store(stamp, self._following(rows), rows)

    def begin_anew(self, items: Items) -> None:
        """Forget all grants, and keep no rows for readers, because the table is being reset."""
        super().begin_anew(items)
        self.repeats.forget_readers()

    @property
    def keeps_for_readers(self) -> bool:
        """Whether rows are kept for readers that may repeat their draws after a restart."""
        return self.repeats.are_expected

    def kept_less(self) -> None:
        """Take notice that fewer rows are kept for readers."""

    def choose_points(self, draw: Draw, count: int) -> Points:
        """Return zeros: draws are in order of age, not by points."""
        return Points(np.zeros(count * draw.batch_size))

    @abstractmethod
    def draw(self, draw: Draw, points: Points, live: LiveRows) -> Drawn:
        """Return what is to be delivered next, for each point. This changes no state; see `hand_out`."""

    @abstractmethod
    def _following(self, rows: int) -> range:
        """Return the numbers of the next deliveries."""

    @abstractmethod
    def _stored(self, numbers: range) -> Deliveries | None:
        """Return deliveries by number; None if rows of them were overwritten or removed."""

    def _expect_readers(self) -> None:
        """Keep the rows that readers may ask for again after a restart."""

        def first_row(numbers: range) -> int | None:
            found = self._stored(numbers)
            return None if found is None else found.first

        self.repeats.expect(first_row)

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

    def __init__(self, config: TableConfig, header: Header, draws: DeliveryLog) -> None:
        """Continue from the state in ``header`` and the recent ``draws``."""
        super().__init__(config, header, draws)
        self._expect_readers()

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
        waiting = (self._next + self._granted) // self._times
        stored = state.released(self._times)
        return min(
            waiting + self._config.capacity - state.inserted,
            min(stored, self.repeats.kept(stored)) + self._config.slots - state.inserted,
        )

    def _following(self, rows: int) -> range:
        """Return the numbers of the next deliveries."""
        return range(self._next, self._next + rows)

    def _stored(self, numbers: range) -> Deliveries | None:
        """Return deliveries by number; None if rows of them were overwritten or removed."""
        keys = np.arange(numbers.start, numbers.stop) // self._times
        first = int(keys[0])
        is_stored = first >= max(self._header.state.floor, self._header.write_horizon - self._config.slots)
        return Deliveries(keys, first) if is_stored else None

    @property
    def _next(self) -> int:
        """Number of the next delivery."""
        state = self._header.state
        return max(state.delivered, state.floor * self._times)
