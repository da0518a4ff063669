"""The rate limiter's arithmetic: how many samples, and which inserts, the counters of a table allow.

Reverb's ``RateLimiter::CanSample`` and ``CanInsert``, for any number of rows at once. It has no state of its own: the
counters are in the table's header, and a restart changes nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from replay_proto.rate_limit import RateLimit


class Counters(NamedTuple):
    """What has happened to a table since it was made or reset."""

    size: int
    """Live rows."""
    inserted: int
    """Rows inserted."""
    sampled: int
    """Rows drawn."""


def difference(limit: RateLimit, counters: Counters) -> float:
    """``inserted * samples_per_insert - sampled``; 0.0 where no ratio is kept."""
    if limit.samples_per_insert is None:
        return 0.0
    return counters.inserted * limit.samples_per_insert - counters.sampled


def samples_allowed(limit: RateLimit, counters: Counters, wanted: int) -> int:
    """How many of ``wanted`` samples may be taken, one after the other."""
    if counters.size < limit.min_size:
        return 0
    if limit.samples_per_insert is None:
        return wanted
    before = difference(limit, counters)
    allowed = max(0, min(wanted, math.floor(before - limit.min_diff)))
    # The subtraction above is rounded; what counts is the difference afterwards.
    while allowed and before - allowed < limit.min_diff:
        allowed -= 1
    return allowed


def insert_allowed(limit: RateLimit, counters: Counters, rows: int) -> bool:
    """Whether so many rows may be inserted, one after the other: the last one is the hardest to allow.

    Rows that arrive together and lead beyond ``min_size`` are let in whole, unless they are more than
    `RateLimit.largest_insert`: nothing may be drawn that would make room for them.
    """
    if limit.largest_insert is None or counters.size + rows <= limit.min_size:
        return True
    if counters.size < limit.min_size and rows <= limit.largest_insert:
        return True
    assert limit.samples_per_insert is not None
    return (counters.inserted + rows) * limit.samples_per_insert - counters.sampled <= limit.max_diff


def samples_needed(limit: RateLimit, counters: Counters, rows: int) -> int:
    """How many samples have to be drawn in all before inserts of so many rows, which are not allowed now, may be."""
    assert limit.samples_per_insert is not None
    needed = math.ceil((counters.inserted + rows) * limit.samples_per_insert - limit.max_diff)
    # The subtraction is rounded.
    return max(needed, counters.sampled + 1)
