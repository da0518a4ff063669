"""The counters of a table, stored together in the header, sync points and checkpoints.

The header stores each counter in one aligned word, so each store is atomic. A reset changes several counters, but
storing a single word commits it; see `replay_server.storage.ranges.RESETTING`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from replay_server.storage.ranges import KEYS, RESETTING, SAMPLED

StateField = Literal["inserted", "floor", "counted_from", "delivered", "sampled"]


class TableState(NamedTuple):
    """The counters of a table. Fields are stored in this order. ``sampled`` comes last; storing it ends a reset."""

    inserted: int = 0
    """Number of rows ever inserted and committed; also the next row's key."""
    floor: int = 0
    """Rows below this key are gone: they were removed by a reset, lost in a power loss, or left a queue of windows."""
    counted_from: int = 0
    """Key of the first row after the last reset. A rate limiter counts rows from this key on, even lost ones, so it may
    be below ``floor``."""
    delivered: int = 0
    """Number of a queue's next delivery, unless ``floor`` is beyond it; see `replay_server.table.oldest_first` and
    `replay_server.table.window_queue`."""
    sampled: int = 0
    """Rows drawn from a table with a rate limiter since it was created or reset. In a distributed table, a row may be
    counted in another shard than the one it was drawn from, so the number can be negative."""

    def released(self, times: int) -> int:
        """Return the key below which all rows were reset, lost or delivered. ``times`` is `TableConfig.times`."""
        return max(self.floor, self.delivered // times) if times else self.floor

    def oldest(self, most_live: int, times: int) -> int:
        """Return the key of the oldest live row; ``inserted`` if there is none. At most ``most_live`` rows are live."""
        return max(self.released(times), self.inserted - most_live)

    def live(self, most_live: int, times: int) -> range:
        """Return the keys of the live rows."""
        return range(self.oldest(most_live, times), self.inserted)

    def after_reset(self) -> TableState:
        """Return the state after a reset, without rows or samples; keys continue."""
        return self._replace(floor=self.inserted, counted_from=self.inserted, sampled=0)

    def without_rows_below(self, key: int) -> TableState:
        """Return the state without the rows below a key. Deliveries and the rate limiter are unaffected."""
        return self._replace(floor=max(self.floor, key))

    def is_not_before(self, other: TableState) -> bool:
        """Whether this state may be at least as new as ``other``. Ignores ``sampled``, which a reset sets to 0."""
        return self.inserted >= other.inserted and self.floor >= other.floor and self.delivered >= other.delivered

    def check(self, numbers_per_row: int) -> None:
        """Raise `ValueError` unless the state is consistent; see `TableConfig.numbers_per_row`."""
        if (
            not 0 <= self.counted_from <= self.floor <= self.inserted
            or self.inserted not in KEYS
            or not 0 <= self.delivered <= self.inserted * numbers_per_row
            or self.sampled not in SAMPLED
        ):
            raise ValueError(f"expected the state of a table, found {self._asdict()}")

    @classmethod
    def from_words(cls, words: Sequence[int]) -> TableState:
        """Decode int64 words, completing an interrupted reset. The result may still be inconsistent."""
        state = cls(*words)
        return state.after_reset() if state.sampled == RESETTING else state

    @classmethod
    def from_json(cls, stored: Mapping[str, object]) -> TableState:
        """Read the state from a manifest. The result may still be inconsistent.

        Raises:
            ValueError: if a field is missing, unknown, or not a whole number.
        """
        if set(stored) != set(STATE_FIELDS) or any(type(value) is not int for value in stored.values()):
            raise ValueError(f"expected whole numbers for {', '.join(STATE_FIELDS)}, found {dict(stored)}")
        return cls(**stored)  # type: ignore[arg-type]


STATE_FIELDS = TableState._fields
STATE_WORDS = len(STATE_FIELDS)
