"""Exact minimum and maximum of millions of changing values, without scanning all of them.

Values are in an array with one entry per slot. A tree with fan-out 64 above it stores the extreme of each block of 64
values, of each block of 64 such extremes, and so on up to a single one. A changed value affects its block in two cases.
If the new value is more extreme than the block's extreme, it replaces that extreme. If the old value was the extreme,
the block is scanned again. For most changes, only one number of the tree is read.

A tree stores the minimum of ``sign * value``, so one algorithm handles both extremes. Values below ``floor`` are
ignored. These include all slots without a live row, where the priority is `DEAD_PRIORITY` and the mass is 0.

All kernels here use these arguments:

* ``values``: float64[slots], the values themselves.
* ``upper``: float64[...], the tree: the extremes of all blocks, level by level.
* ``starts``: int64[levels + 1], where each level of ``upper`` begins, from `block_starts`.
* ``sign``: `SMALLEST` or `LARGEST`.
* ``floor``: `NOT_BELOW_ZERO` or `ABOVE_ZERO`.
"""

from __future__ import annotations

import numpy as np

from replay_server.backends.structures.sums import level_starts
from replay_server.kernels.compile import Floats, Integers, aligned_full, kernel, part_of_kernel
from replay_server.kernels.prefetch import prefetch

BLOCK = 64
"""Values per block: 8 cache lines, scanned in about 50 ns; the tree needs 1/64 of the values' memory."""

NOT_BELOW_ZERO = 0.0
"""Floor for priorities: ignores dead slots."""

ABOVE_ZERO = 5e-324
"""Floor for masses: the smallest number above zero."""

NO_VALUE = np.inf
"""Stored for ignored values, and for blocks in which all values are ignored."""


SMALLEST, LARGEST = 1.0, -1.0
"""Values of ``sign``."""


def block_starts(slots: int) -> Integers:
    """Return int64[levels + 1]: where each level of extremes over ``slots`` values begins."""
    return level_starts(-(-slots // BLOCK), BLOCK)


def empty_tree(starts: Integers) -> Floats:
    """Return a tree for values that are all ignored."""
    return aligned_full(int(starts[-1]), NO_VALUE)


def top(upper: Floats, starts: Integers, sign: float) -> float:
    """Return the extreme of all values; 0.0 if all are ignored."""
    extreme = float(upper[starts[-2]])
    return 0.0 if extreme == NO_VALUE else sign * extreme


@part_of_kernel
def prefetch_block(upper: Floats, slot: int) -> None:
    """Prefetch the extreme of a slot's block."""
    prefetch(upper, slot // BLOCK)


@part_of_kernel
def _counted(value: float, sign: float, floor: float) -> float:
    """Return the tree's representation of a value."""
    return sign * value if value >= floor else NO_VALUE


@kernel
def _smallest_of(values: Floats, start: int, stop: int, sign: float, floor: float, enough: float) -> float:
    """Return the minimum of ``values[start:stop]`` as a tree stores it, or the first value of at most ``enough``."""
    smallest = NO_VALUE
    for i in range(start, stop):
        counted = _counted(values[i], sign, floor)
        if counted < smallest:
            smallest = counted
            if smallest <= enough:
                break
    return smallest


@kernel
def _raise(upper: Floats, starts: Integers, block: int, old: float, new: float) -> None:
    """Update the levels above a lowest-level block whose extreme changed from ``old`` to ``new``."""
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
    values: Floats, upper: Floats, starts: Integers, sign: float, floor: float, slots: Integers, old_values: Floats
) -> None:
    """Update a tree after values have changed. slots: int64[n], distinct; old_values: float64[n]."""
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
def gather(values: Floats, upper: Floats, starts: Integers, sign: float, floor: float) -> None:
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
