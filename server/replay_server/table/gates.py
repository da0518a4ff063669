"""What stands between callers and the rows of a table: its rate limiter, or the order of a queue.

    gate = make_gate(config, header)            # None: draws need a row, inserts nothing
    gate.grant(256)                             # samples a draw may have now, to be drawn or given back
    gate.insert_allowed(17)

Gates count and decide; `replay_server.flow.waiting` lets calls wait for them. What was drawn is part of the table's
state: a restart or a restore changes nothing. What was granted and not drawn yet goes with the calls that wait.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from replay_proto.rate_limit import RateLimit

from replay_server import errors
from replay_server.errors import Lack
from replay_server.storage.header import Header
from replay_server.storage.table_config import TableConfig
from replay_server.table.limiter import Counters, difference, insert_allowed, samples_allowed, samples_needed


class Gate(Protocol):
    """Decides when rows of a table may go out and come in."""

    def check_draw(self, rows: int) -> None:
        """Refuse a draw that can never be allowed.

        Raises:
            RequestError: TOO_LARGE.
        """

    def grant(self, rows: int) -> int:
        """Allow a draw some of its rows, or all; they are held for it until they are drawn or given back.

        Returns:
            How many, at most ``rows``.
        """

    def give_back(self, rows: int) -> None:
        """What was granted is not drawn after all."""

    def count_drawn(self, rows: int) -> None:
        """A draw has been granted all its rows and is about to take them."""

    def draw_lacks(self, rows: int, granted: int) -> Lack:
        """What a draw of so many rows waits for that was granted fewer."""

    def check_insert(self, rows: int) -> None:
        """Refuse an insert that is not allowed now and may never be.

        Raises:
            RequestError: TOO_LARGE.
        """

    def insert_allowed(self, rows: int) -> bool:
        """Whether so many rows may be inserted now."""

    def insert_lacks(self, rows: int) -> Lack:
        """What inserts of so many rows in all, which are not allowed, wait for."""

    def reset(self) -> None:
        """The table is about to lose all its rows."""


class LimiterGate:
    """A rate limiter over a ring. A `Gate`."""

    def __init__(self, limit: RateLimit, capacity: int, header: Header) -> None:
        """Go on from the state in ``header``."""
        self.limit = limit
        self._capacity = capacity
        self._header = header
        self._granted = 0

    @property
    def counters(self) -> Counters:
        """As the table stands, with what is granted counted as drawn."""
        state = self._header.state
        return Counters(
            size=state.inserted - state.oldest(self._capacity, times=0),
            inserted=state.inserted - state.counted_from,
            sampled=state.sampled + self._granted,
        )

    @property
    def difference(self) -> float:
        """What the limiter keeps in bounds."""
        return difference(self.limit, self.counters)

    def check_draw(self, rows: int) -> None:
        """Refuse what is not allowed now and takes more inserts than the table has rows.

        Samples are granted one by one, so any draw would get there; but meanwhile those behind it get none.
        """
        limit = self.limit
        if limit.samples_per_insert is None:
            return
        span = limit.max_diff - limit.min_diff if math.isfinite(limit.max_diff - limit.min_diff) else 0.0
        most = max(1, math.floor(self._capacity * limit.samples_per_insert + span))
        if rows > most and samples_allowed(limit, self.counters, rows) < rows:
            raise errors.too_large(
                "rows of one draw", most, rows, "capacity * samples_per_insert + error_buffer of the table"
            )

    def grant(self, rows: int) -> int:
        """Allow as many samples as the counters do."""
        granted = samples_allowed(self.limit, self.counters, rows)
        self._granted += granted
        return granted

    def give_back(self, rows: int) -> None:
        """Leave them to others."""
        self._granted -= rows

    def count_drawn(self, rows: int) -> None:
        """Count them in the table's state."""
        self._granted -= rows
        self._header.store("sampled", self._header.state.sampled + rows)

    def draw_lacks(self, rows: int, granted: int) -> Lack:
        """``rows`` below min_size, else ``samples``."""
        size = self.counters.size
        if size < self.limit.min_size:
            return Lack("rows", size, self.limit.min_size)
        return Lack("samples", granted, rows)

    def check_insert(self, rows: int) -> None:
        """Refuse what draws of single samples might never make room for."""
        largest = self.limit.largest_insert
        if largest is not None and rows > largest and not self.insert_allowed(rows):
            raise errors.too_large("rows of one insert", largest, rows, "error_buffer of the table's rate limiter")

    def insert_allowed(self, rows: int) -> bool:
        """Whether the counters allow it."""
        return insert_allowed(self.limit, self.counters, rows)

    def insert_lacks(self, rows: int) -> Lack:
        """``inserts``: samples drawn, and how many of them make room."""
        counters = self.counters
        return Lack("inserts", counters.sampled, samples_needed(self.limit, counters, rows))

    def reset(self) -> None:
        """Nothing is granted any more; the state begins anew with the table's."""
        self._granted = 0


class QueueGate:
    """The order of a queue: oldest first, each row so many times, and no insert over rows not yet gone. A `Gate`.

    Each time a row goes out counts as a delivery. Deliveries are numbered: row k has those from ``k * times`` on. The
    number of the next one is stored before a reply is sent, in one word from which the oldest live row follows: no row
    goes out more often than it may, whatever happens.

    Rows that are granted make room at once, though they are still there: a draw that waits for more rows, and an
    insert that waits for room, would otherwise wait for each other. The ring's slack is what that takes.
    """

    def __init__(self, times: int, config: TableConfig, header: Header) -> None:
        """Go on from the state in ``header``."""
        self._times = times
        self._config = config
        self._header = header
        self._granted = 0

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

    def give_back(self, rows: int) -> None:
        """Leave them to others."""
        self._granted -= rows

    def count_drawn(self, rows: int) -> None:
        """Nothing: they count when they are delivered."""

    def next_rows(self, rows: int) -> NDArray[np.int64]:
        """int64[rows]: keys of the rows that go out next, oldest first."""
        return np.arange(self._next, self._next + rows) // self._times

    def deliver(self, rows: int) -> None:
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

    def reset(self) -> None:
        """Nothing is granted any more."""
        self._granted = 0

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


def make_gate(config: TableConfig, header: Header) -> LimiterGate | QueueGate | None:
    """The gate of a table; None if it has none."""
    if config.is_queue:
        return QueueGate(config.times, config, header)
    if config.rate_limit is not None:
        return LimiterGate(config.rate_limit, config.capacity, header)
    return None
