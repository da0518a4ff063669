"""The values that each stored number may have.

    KEYS.check("inserted", value)           # of a request: raises FieldError
    if value not in KEYS: ...               # of a file
    SAMPLED.nearest(sampled + 256)          # of a counter

Requests and files are checked by the same ranges, so a server can always read what it has accepted. Numbers of configs
(`TableConfig`, `RateLimit`, `Steps`, `Column`, `ShardMap`) are checked when these are created, whatever they come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from replay_proto.errors import FieldError

_INT64 = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Range:
    """Whole numbers from ``least`` to ``most``."""

    least: int
    most: int

    def __contains__(self, value: object) -> bool:
        """Whether this is a whole number in the range."""
        return type(value) is int and self.least <= value <= self.most

    def check(self, field: str, value: int) -> int:
        """Return ``value`` if it is in the range; raise `FieldError` if it is not."""
        if value in self:
            return value
        raise FieldError(field, f"a whole number from {self.least} to {self.most}", repr(value))

    def nearest(self, value: int) -> int:
        """Return the number in the range that is nearest to ``value``: a counter stops at the ends of its range."""
        return min(max(value, self.least), self.most)


KEYS: Final = Range(0, (1 << 48) - 1)
"""Keys and counts of inserted rows: the top 16 bits of a key are reserved."""
SAMPLED: Final = Range(-(1 << 52), 1 << 52)
"""Rows drawn, as a rate limiter counts them. In a distributed table, a row may be counted in another shard than the one
it was drawn from, so the count may be negative. Sums over all shards fit into 64 bits, and each count into a float."""
RESETTING: Final = -(1 << 63)
"""Marks a reset that has begun, in place of the count of drawn rows. Counting cannot reach it."""
assert RESETTING not in SAMPLED
CAPACITIES: Final = Range(0, 1 << 50)
"""Capacity of a whole table, of which a table is a shard: up to 1024 times the largest capacity of a table; 0 if it is
not a shard. A table's own capacity depends on its backend."""
SHARD_IDS: Final = Range(0, (1 << 15) - 1)
"""Ids of shards: keys of distributed tables have 15 bits for them."""
LARGEST_MASS: Final = 2.0**948
"""Largest mass of a table: that of as many rows as there are keys, each with the largest mass of a row, 2^900."""
MAP_VERSIONS: Final = Range(1, 1 << 53)
"""Versions of a shard map."""
MAP_CHANGES: Final = Range(1, 1 << 20)
"""How far a new version may be from a server's last one: no single change may use up all versions."""
CHECKPOINT_NUMBERS: Final = Range(1, 10**15)
"""Numbers of the checkpoints in a series."""
BYTES: Final = Range(0, _INT64)
"""Sizes of files."""
