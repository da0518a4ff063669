"""Counts the draws of each live row: one count per slot, and a histogram of the counts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from replay_server.kernels.compile import Integers, as_kernel_input, kernel
from replay_server.kernels.prefetch import touch

COUNT_BYTES = 4
"""Bytes of a count; there is one per slot."""
_BARS = 33
"""Buckets of the histogram: one for 0, then one per number of bits (1, 2 to 3, 4 to 7, ...)."""


class TimesSampled:
    """Counts how often each live row was drawn since it was inserted, or since the server started."""

    def __init__(self, slots: int) -> None:
        """Start without rows."""
        self._counts = np.zeros(slots, np.uint32)
        self._bars = np.zeros(_BARS, np.int64)

    def blank(self) -> TimesSampled:
        """Return counts for as many slots, without rows."""
        return TimesSampled(len(self._counts))

    def appear(self, count: int) -> None:
        """Add new rows with a count of 0; `disappear` has already zeroed their slots."""
        self._bars[0] += count

    def disappear(self, keys: Integers) -> None:
        """Remove rows that are no longer live. keys: int64[n]."""
        _disappear(self._counts, self._bars, as_kernel_input(keys))

    def draw(self, keys: Integers) -> None:
        """Count draws of live rows. keys: int64[batch]."""
        _draw(self._counts, self._bars, as_kernel_input(keys))

    def of(self, keys: Integers) -> Integers:
        """Return int64[n]: how often each of these live rows was drawn. keys: int64[n]."""
        return self._counts[keys % len(self._counts)].astype(np.int64)

    def bars(self) -> Iterator[tuple[int, int, int]]:
        """Yield the non-empty buckets: minimum, maximum and number of rows."""
        for bits in np.flatnonzero(self._bars):
            at_least = 1 << (int(bits) - 1) if bits else 0
            yield at_least, (1 << int(bits)) - 1, int(self._bars[bits])


@kernel
def _bar(count: int) -> int:
    bits = 0
    while count > 0:
        count >>= 1
        bits += 1
    return bits


@kernel
def _disappear(counts: NDArray[np.uint32], bars: Integers, keys: Integers) -> None:
    slots = len(counts)
    for i in range(len(keys)):
        slot = keys[i] % slots
        bars[_bar(int(counts[slot]))] -= 1
        counts[slot] = 0


@kernel
def _draw(counts: NDArray[np.uint32], bars: Integers, keys: Integers) -> None:
    slots = len(counts)
    places = np.empty(len(keys), np.int64)
    for i in range(len(keys)):
        places[i] = keys[i] % slots
    for i in range(len(keys)):
        touch(counts, places[i])
    for slot in places:
        before = int(counts[slot])
        if before == 0xFFFFFFFF:
            continue
        counts[slot] = before + 1
        if before & (before + 1) == 0:  # only a power of two has one bit more than the number before it
            bars[_bar(before)] -= 1
            bars[_bar(before + 1)] += 1
