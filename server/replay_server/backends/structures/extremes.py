"""The largest and smallest of a million changing values, kept exactly, without passes over all of them.

Values lie in an array of one entry per slot. Over them stands a tree of fan-out 64 that keeps the extreme of each
block of 64 values, of each block of 64 such extremes, and so on to a single one at the top. A changed value matters
to its block only if it is beyond the block's extreme, which it then replaces, or if it was the extreme, in which
case the block is scanned. Most changes touch one number per tree.

A tree keeps the smallest of ``sign * value``, so one algorithm serves both extremes. Values below a ``floor`` do not
count: slots without a live row hold `DEAD_PRIORITY`, or no mass. All kernels here speak of these:

* ``values``: float64[slots], the values themselves.
* ``upper``: float64[...], the tree: the extremes of all blocks, level by level.
* ``starts``: int64[levels + 1], where each level of ``upper`` begins, by `block_starts`.
* ``sign``: `SMALLEST` or `LARGEST`.
* ``floor``: `NOT_BELOW_ZERO` or `ABOVE_ZERO`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.structures.levels import level_starts
from replay_server.kernels.compile import aligned_full, kernel, part_of_kernel
from replay_server.kernels.prefetch import prefetch

BLOCK = 64
"""How many values share one extreme: 8 cache lines, a scan of about 50 ns, and 1/64 of the values' own memory."""

NOT_BELOW_ZERO = 0.0
"""Floor of a tree over priorities: everything that is not dead."""

ABOVE_ZERO = 5e-324
"""Floor of a tree over masses: the smallest number above zero."""

NO_VALUE = np.inf
"""What a tree keeps of a value that does not count, and of a block without one that does."""


SMALLEST, LARGEST = 1.0, -1.0
"""Signs of a tree."""


def block_starts(slots: int) -> NDArray[np.int64]:
    """Return int64[levels + 1]: where each level of extremes over ``slots`` values begins."""
    return level_starts(-(-slots // BLOCK), BLOCK)


def empty_tree(starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the tree over values of which none counts."""
    return aligned_full(int(starts[-1]), NO_VALUE)


def top(upper: NDArray[np.float64], starts: NDArray[np.int64], sign: float) -> float:
    """Return the extreme of all values; 0.0 if none counts."""
    extreme = float(upper[starts[-2]])
    return 0.0 if extreme == NO_VALUE else sign * extreme


@part_of_kernel
def prefetch_block(upper: NDArray[np.float64], slot: int) -> None:
    """Ask for the extreme of the block that a slot lies in."""
    prefetch(upper, slot // BLOCK)


@part_of_kernel
def _counted(value: float, sign: float, floor: float) -> float:
    """Return what a tree keeps of a value."""
    return sign * value if value >= floor else NO_VALUE


@kernel
def _smallest_of(values: NDArray[np.float64], start: int, stop: int, sign: float, floor: float, enough: float) -> float:
    """Return what a tree keeps of ``values[start:stop]``; the scan ends early at a value of at most ``enough``."""
    smallest = NO_VALUE
    for i in range(start, stop):
        counted = _counted(values[i], sign, floor)
        if counted < smallest:
            smallest = counted
            if smallest <= enough:
                break
    return smallest


@kernel
def _raise(upper: NDArray[np.float64], starts: NDArray[np.int64], block: int, old: float, new: float) -> None:
    """Update the levels above the lowest after the extreme of one of its blocks went from ``old`` to ``new``."""
    for level in range(1, len(starts) - 1):
        first = starts[level - 1] + block // BLOCK * BLOCK
        block = block // BLOCK
        extreme = upper[starts[level] + block]
        if new > extreme and old > extreme:
            return
        changed = new if new <= extreme else _smallest_of(upper, first, first + BLOCK, 1.0, -np.inf, extreme)
        if changed == extreme:
            return
        upper[starts[level] + block] = changed
        old, new = extreme, changed


@kernel
def follow(
    values: NDArray[np.float64],
    upper: NDArray[np.float64],
    starts: NDArray[np.int64],
    sign: float,
    floor: float,
    slots: NDArray[np.int64],
    old_values: NDArray[np.float64],
) -> None:
    """Update a tree after values changed in ``slots``, int64[n] and distinct, from ``old_values``, float64[n]."""
    for i in range(len(slots)):
        old, new = _counted(old_values[i], sign, floor), _counted(values[slots[i]], sign, floor)
        block = slots[i] // BLOCK
        extreme = upper[block]
        if new >= extreme and old > extreme:
            continue
        changed = new
        if new > extreme:
            stop = min((block + 1) * BLOCK, len(values))
            changed = _smallest_of(values, block * BLOCK, stop, sign, floor, extreme)
        if changed != extreme:
            upper[block] = changed
            _raise(upper, starts, block, extreme, changed)


@kernel
def gather(
    values: NDArray[np.float64], upper: NDArray[np.float64], starts: NDArray[np.int64], sign: float, floor: float
) -> None:
    """Compute a whole tree from the values."""
    upper[:] = NO_VALUE
    for first in range(0, len(values), BLOCK):
        stop = min(first + BLOCK, len(values))
        upper[first // BLOCK] = _smallest_of(values, first, stop, sign, floor, -np.inf)
    for level in range(1, len(starts) - 1):
        below = starts[level - 1]
        for first in range(below, starts[level], BLOCK):
            extreme = _smallest_of(upper, first, first + BLOCK, 1.0, -np.inf, -np.inf)
            upper[starts[level] + (first - below) // BLOCK] = extreme
