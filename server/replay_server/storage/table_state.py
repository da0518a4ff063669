"""The counters of a table, stored together in header, sync points and checkpoints.

The header stores each of them in one aligned word, so each change is atomic. A reset changes several of them, but is
also committed by one word; see `RESETTING`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

MAX_KEY = (1 << 48) - 1
"""The top 16 bits of a key are reserved."""
RESETTING = -1
"""``sampled`` while a reset is being stored. Whoever reads this finishes the reset."""

StateField = Literal["inserted", "floor", "counted_from", "delivered", "sampled"]


class TableState(NamedTuple):
    """The counters of a table. Fields are stored in this order; ``sampled`` comes last and ends a reset."""

    inserted: int = 0
    """Rows ever inserted and committed: the next row's key."""
    floor: int = 0
    """No row below this key is live, because of a reset or because older rows could not be kept."""
    counted_from: int = 0
    """Key of the first row that a rate limiter counts: where the last reset came. Rows that are lost stay counted, so
    this may be below ``floor``."""
    delivered: int = 0
    """Number of a queue's next delivery, unless ``floor`` is beyond it; see `replay_server.table.oldest_first`."""
    sampled: int = 0
    """Rows drawn from a table with a rate limiter since it was made or reset."""

    def released(self, times: int) -> int:
        """No row below this key is live, whatever the capacity. ``times`` is `TableConfig.times`."""
        return max(self.floor, self.delivered // times) if times else self.floor

    def oldest(self, most_live: int, times: int) -> int:
        """Key of the oldest of at most ``most_live`` live rows; ``inserted`` if there is none."""
        return max(self.released(times), self.inserted - most_live)

    def live(self, most_live: int, times: int) -> range:
        """Keys of the live rows."""
        return range(self.oldest(most_live, times), self.inserted)

    def after_reset(self) -> TableState:
        """Without rows, counting from the beginning; keys go on."""
        return self._replace(floor=self.inserted, counted_from=self.inserted, sampled=0)

    def without_rows_below(self, key: int) -> TableState:
        """With the rows below a key gone. Deliveries and the rate limiter go on as before."""
        return self._replace(floor=max(self.floor, key))

    def is_not_before(self, other: TableState) -> bool:
        """Whether the table could have come from another state to this one. Draws start anew with a reset."""
        return self.inserted >= other.inserted and self.floor >= other.floor and self.delivered >= other.delivered

    def check(self, times: int) -> None:
        """Make sure that a table could have come to this state.

        Raises:
            ValueError: if it could not.
        """
        if (
            not 0 <= self.counted_from <= self.floor <= self.inserted <= MAX_KEY
            or not 0 <= self.delivered <= self.inserted * times
            or self.sampled < 0
        ):
            raise ValueError(f"expected the state of a table, found {self._asdict()}")

    @classmethod
    def from_words(cls, words: Sequence[int]) -> TableState:
        """The state in int64 words; a reset that was cut short is finished. It may still be damaged."""
        state = cls(*words)
        return state.after_reset() if state.sampled == RESETTING else state

    @classmethod
    def from_json(cls, stored: Mapping[str, object]) -> TableState:
        """What a manifest keeps, by name. It may still be damaged.

        Raises:
            ValueError: if a field is missing, unknown, or not a whole number.
        """
        if set(stored) != set(STATE_FIELDS) or any(type(value) is not int for value in stored.values()):
            raise ValueError(f"expected whole numbers for {', '.join(STATE_FIELDS)}, found {dict(stored)}")
        return cls(**stored)  # type: ignore[arg-type]


STATE_FIELDS = TableState._fields
STATE_WORDS = len(STATE_FIELDS)
