"""Removes stale and duplicate keys from updates."""

from __future__ import annotations

import secrets
from typing import NamedTuple

import numpy as np

from replay_server.backends.index import DEAD_PRIORITY
from replay_server.kernels.compile import Floats, Integers, as_kernel_input, kernel
from replay_server.kernels.prefetch import touch

_EMPTY = -1
_LOAD = 2
"""Minimum number of hash table entries per key."""
_SECRET = secrets.randbits(63)
"""Random per process: a caller who does not know it cannot choose keys that collide."""
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""Multipliers of SplitMix64's finalizer (Steele et al. 2014): every bit of a hash depends on every bit of the key."""


class ResolvedUpdate(NamedTuple):
    """An update, without stale keys and duplicates."""

    keys: Integers
    """int64[n]: distinct keys of live, drawable rows."""
    priorities: Floats
    """float64[n]: the last priority given for each key."""
    stale: int
    """Number of given keys whose rows are not live or not drawable, counting duplicates."""


def resolve_update(
    keys: Integers, priorities: Floats, oldest: int, inserted: int, stored: Floats, secret: int = _SECRET
) -> ResolvedUpdate:
    """Drop stale keys, int64[n], and keep the last priority of duplicate keys.

    Takes linear time even for adversarial keys: their hashes depend on ``secret``, which has 63 bits. Live rows have
    keys from ``oldest`` up to ``inserted``; ``stored``, float64[slots], are the priorities of the table.
    """
    return ResolvedUpdate(
        *_resolve(as_kernel_input(keys), as_kernel_input(priorities), oldest, inserted, stored, secret)
    )


@kernel
def first_unusable(priorities: Floats, limit: float) -> int:
    """Return the index of the first invalid priority (negative, above ``limit``, or NaN); -1 if all are valid."""
    for i in range(len(priorities)):
        if not 0.0 <= priorities[i] <= limit:
            return i
    return -1


def last_of_each(keys: Integers, oldest: int, inserted: int) -> Integers:
    """Return the places, int64[m], of the last occurrence of each live key. keys: int64[n], any numbers."""
    distinct, places = np.unique(keys[::-1], return_index=True)
    is_live = (distinct >= oldest) & (distinct < inserted)
    return len(keys) - 1 - places[is_live]


def live_only(keys: Integers, oldest: int, inserted: int) -> Integers:
    """Return the keys from ``oldest`` up to but excluding ``inserted``, in the given order, with duplicates."""
    return keys[(keys >= oldest) & (keys < inserted)]


@kernel
def _resolve(
    keys: Integers, priorities: Floats, oldest: int, inserted: int, stored: Floats, secret: int
) -> tuple[Integers, Floats, int]:
    for key in keys:
        touch(stored, key % len(stored))
    places = 16
    shift = 60
    while places < _LOAD * len(keys):
        places *= 2
        shift -= 1
    found_at = np.full(places, _EMPTY, np.int64)
    live_keys = np.empty(len(keys), np.int64)
    live_priorities = np.empty(len(keys), np.float64)
    count, stale = 0, 0
    for i in range(len(keys)):
        key = keys[i]
        if key < oldest or key >= inserted or stored[key % len(stored)] == DEAD_PRIORITY:
            stale += 1
            continue
        mixed = np.uint64(key ^ secret)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
        place = np.int64(mixed >> np.uint64(shift))
        while found_at[place] != _EMPTY and live_keys[found_at[place]] != key:
            place = (place + 1) & (places - 1)
        if found_at[place] == _EMPTY:
            found_at[place] = count
            live_keys[count] = key
            count += 1
        live_priorities[found_at[place]] = priorities[i]
    return live_keys[:count], live_priorities[:count], stale
