"""Gates of a table, which grant rows to draws and allow inserts; the rate limiter is one.

    granted = gate.grant(256)                   # up to 256 rows: draw them, or give them back
    if gate.insert_allowed(17):
        ...                                     # insert 17 rows

Gates only decide; calls wait in `replay_server.flow.admission`. The count of drawn rows is part of the state of the
table, and survives a restart or restore. Rows granted but not yet drawn are tracked only in memory.

A table without a gate allows every insert, and every draw if it has any rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

from replay_proto.rate_limit import RateLimit

from replay_server import errors
from replay_server.errors import Lack
from replay_server.storage.header import Header
from replay_server.storage.ranges import SAMPLED
from replay_server.storage.table_config import TableConfig
from replay_server.table.items.items import Items


class Gate(ABC):
    """Decides when rows may be drawn and inserted."""

    def __init__(self, header: Header) -> None:
        """Continue from the state in ``header``."""
        self._header = header
        self._granted = 0

    @abstractmethod
    def check_draw(self, rows: int) -> None:
        """Refuse a draw that can never be allowed."""

    @abstractmethod
    def grant(self, rows: int) -> int:
        """Grant a draw some or all of its rows; return their number. They are reserved until drawn or given back."""

    def give_back(self, rows: int) -> None:
        """Take back granted rows that will not be drawn."""
        self._granted -= rows

    @abstractmethod
    def count_drawn(self, rows: int) -> None:
        """Count the rows of a draw once all of them are granted and the draw may run."""

    @abstractmethod
    def count_failed(self, rows: int) -> None:
        """Handle the failure of a draw whose rows were counted, but not handed out."""

    @abstractmethod
    def draw_lacks(self, rows: int, granted: int) -> Lack:
        """Return what a draw of ``rows`` rows lacks; ``granted`` of them are granted already."""

    def blocks_inserts(self, granted: int) -> bool:
        """Whether a draw that waits for inserts keeps them from being allowed, by the rows that it was granted."""
        return False

    @abstractmethod
    def check_insert(self, rows: int) -> None:
        """Refuse an insert that might never be allowed."""

    @abstractmethod
    def insert_allowed(self, rows: int) -> bool:
        """Whether this many rows may be inserted now."""

    @abstractmethod
    def insert_lacks(self, rows: int) -> Lack:
        """Return what waiting inserts lack; ``rows`` is the total number of their rows."""

    @property
    def keeps_for_readers(self) -> bool:
        """Whether rows that were drawn are kept, because readers may repeat their draws. `Table` can give them up."""
        return False

    def begin_anew(self, items: Items) -> None:
        """Forget all grants, because the table is being reset. ``items`` count its drawable rows from now on."""
        self._granted = 0


class Counters(NamedTuple):
    """Counters of a table since it was created or reset."""

    size: int
    """Number of drawable rows."""
    inserted: int
    """Number of rows inserted since the table was created or reset."""
    sampled: int
    """Number of rows drawn since the table was created or reset."""


def difference(limit: RateLimit, counters: Counters) -> float:
    """Return ``inserted * samples_per_insert - sampled``; 0.0 without a ratio."""
    if limit.samples_per_insert is None:
        return 0.0
    return counters.inserted * limit.samples_per_insert - counters.sampled


def samples_allowed(limit: RateLimit, counters: Counters, wanted: int) -> int:
    """Return how many of ``wanted`` samples are allowed if they are drawn one at a time."""
    if counters.size < limit.min_size:
        return 0
    if limit.samples_per_insert is None:
        return wanted
    before = difference(limit, counters)
    allowed = max(0, min(wanted, math.floor(before - limit.min_diff)))
    # The subtraction above may have been rounded: check the resulting difference.
    while allowed and before - allowed < limit.min_diff:
        allowed -= 1
    return allowed


def insert_allowed(limit: RateLimit, counters: Counters, rows: int) -> bool:
    """Whether this many rows may be inserted. If the last row is allowed, so are the rows before it.

    An insert that takes the table past ``min_size`` is allowed if it has at most `RateLimit.largest_insert` rows.
    Blocking it would deadlock, because draws wait for ``min_size`` rows.
    """
    if limit.largest_insert is None or counters.size + rows <= limit.min_size:
        return True
    if counters.size < limit.min_size and rows <= limit.largest_insert:
        return True
    assert limit.samples_per_insert is not None
    return (counters.inserted + rows) * limit.samples_per_insert - counters.sampled <= limit.max_diff


def samples_needed(limit: RateLimit, counters: Counters, rows: int) -> int:
    """Return how many samples must have been drawn in total before inserts of this many rows are allowed."""
    assert limit.samples_per_insert is not None
    needed = math.ceil((counters.inserted + rows) * limit.samples_per_insert - limit.max_diff)
    # The subtraction may have been rounded down, but at least one more sample is needed.
    return SAMPLED.nearest(max(needed, counters.sampled + 1))


class LimiterGate(Gate):
    """The gate of a table with a rate limit.

    It computes the same as Reverb's ``RateLimiter::CanSample`` and ``CanInsert``, but for any number of rows at once.
    """

    def __init__(self, limit: RateLimit, config: TableConfig, header: Header, items: Items) -> None:
        """Continue from the state in ``header``; ``items`` counts drawable rows."""
        super().__init__(header)
        self.limit = limit
        self._config = config
        self._items = items
        self._reserved = 0  # draws of items, from the grant until they are handed out

    @property
    def counters(self) -> Counters:
        """Current counters; granted samples count as drawn."""
        state = self._header.state
        return Counters(
            size=self._items.count(state.inserted - self._header.oldest),
            inserted=state.inserted - state.counted_from,
            sampled=state.sampled + self._granted,
        )

    @property
    def difference(self) -> float:
        """The current difference, which the limiter keeps within its bounds; see `difference`."""
        return difference(self.limit, self.counters)

    def check_draw(self, rows: int) -> None:
        """Refuse a draw that would have to wait for more inserts than the table has room for.

        Samples are granted one by one, so the draw would succeed eventually, but it would block the draws behind it.
        """
        limit = self.limit
        if self._config.most_draws:
            most = self._config.capacity * self._config.most_draws
            if rows > most:
                raise errors.too_large("rows of one draw", most, rows, "capacity * max_times_sampled of the table")
        if limit.samples_per_insert is None:
            return
        if self._config.most_draws and rows > limit.min_size:
            # The draw would wait for rows that have draws left. Only up to min_size of these are inserted if the
            # bounds allow no insert, because evicted rows took draws with them.
            setting = "min_size of the table's rate limiter, with max_times_sampled"
            raise errors.too_large("rows of one draw", limit.min_size, rows, setting)
        span = limit.max_diff - limit.min_diff if math.isfinite(limit.max_diff - limit.min_diff) else 0.0
        most = max(1, math.floor(self._config.capacity * limit.samples_per_insert + span))
        if rows > most and samples_allowed(limit, self.counters, rows) < rows:
            raise errors.too_large(
                "rows of one draw", most, rows, "capacity * samples_per_insert + error_buffer of the table"
            )

    def grant(self, rows: int) -> int:
        """Grant as many samples as the counters, and the draws that the items have left, allow."""
        left = self._items.draws_left - self._reserved
        granted = samples_allowed(self.limit, self.counters, rows if left >= rows else max(0, int(left)))
        self._granted += granted
        self._reserved += granted
        return granted

    def give_back(self, rows: int) -> None:
        """Take back granted samples that will not be drawn."""
        super().give_back(rows)
        self._reserved -= rows

    def count_drawn(self, rows: int) -> None:
        """Add the samples to the count in the table's state."""
        self._granted -= rows
        self._count(rows)

    def count_failed(self, rows: int) -> None:
        """Let other draws have the items, and take back the samples as far as the bounds allow."""
        self._reserved -= rows
        self.refund(rows)

    def count_handed_out(self, rows: int) -> None:
        """Count draws that the items no longer have left."""
        self._reserved -= rows

    def charge(self, samples: int) -> int:
        """Count samples of a distributed table as drawn, but no more than the bounds allow; return how many."""
        # The whole table has min_size rows, although this shard may have fewer.
        return self._count(samples_allowed(self.limit, self.counters._replace(size=self.limit.min_size), samples))

    def refund(self, samples: int) -> int:
        """Take back samples, because another shard was charged, but no more than the bounds allow; return how many."""
        room = self.limit.max_diff - self.difference
        return -self._count(-(min(samples, max(0, math.floor(room))) if math.isfinite(room) else samples))

    def _count(self, samples: int) -> int:
        """Add samples to the count in the table's state, which stops at the ends of its range; return the change."""
        before = self._header.state.sampled
        after = SAMPLED.nearest(before + samples)
        self._header.store("sampled", after)
        return after - before

    def begin_anew(self, items: Items) -> None:
        """Forget all grants, and count drawable rows in ``items``."""
        super().begin_anew(items)
        self._items = items
        self._reserved = 0

    def draw_lacks(self, rows: int, granted: int) -> Lack:
        """Return what the draw lacks: rows, if there are too few or they have too few draws left, or else samples."""
        size = self.counters.size
        if size < self.limit.min_size:
            return Lack("rows", size, self.limit.min_size)
        if self._items.draws_left - self._reserved < rows - granted:
            return Lack("rows", granted, rows)
        return Lack("samples", granted, rows)

    def check_insert(self, rows: int) -> None:
        """Refuse an insert so large that it might never be allowed."""
        largest = self.limit.largest_insert
        if largest is not None and rows > largest and not self.insert_allowed(rows):
            raise errors.too_large("rows of one insert", largest, rows, "error_buffer of the table's rate limiter")

    def insert_allowed(self, rows: int) -> bool:
        """Whether the counters allow the insert."""
        return insert_allowed(self.limit, self.counters, rows)

    def insert_lacks(self, rows: int) -> Lack:
        """Return how many samples have been drawn, and how many must have been drawn before the inserts are allowed."""
        counters = self.counters
        return Lack("inserts", counters.sampled, samples_needed(self.limit, counters, rows))
