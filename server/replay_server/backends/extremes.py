"""The largest and smallest of a million changing values, kept exactly, without passes over all of them.

Values lie in an array of one entry per slot. Over them stands a tree of fan-out 64 that keeps the extreme of each
block of 64 values, of each block of 64 such extremes, and so on to a single one at the top. A changed value matters
to its block only if it is beyond the block's extreme, which it then replaces, or if it was the extreme, in which
case the block is scanned. Most changes touch one number per tree.

Slots without a live row hold `DEAD_PRIORITY`, or no mass. Both lie below the ``floor`` of a `smallest` tree, and
below every live value in a `largest` tree. All kernels here speak of these arrays:

* ``values``: float64[slots], the values themselves.
* ``upper``: float64[...], the extremes of all blocks, level by level.
* ``starts``: int64[levels + 1], where each level of ``upper`` begins, by `block_starts`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.compile import aligned_full, kernel, part_of_kernel
from replay_server.backends.index import DEAD_PRIORITY
from replay_server.backends.levels import level_starts
from replay_server.backends.prefetch import prefetch

BLOCK = 64
"""How many values share one extreme: 8 cache lines, a scan of about 50 ns, and 1/64 of the values' own memory."""

NOT_BELOW_ZERO = 0.0
"""Floor of a tree over priorities: everything that is not dead."""

ABOVE_ZERO = 5e-324
"""Floor of a tree over masses: the smallest number above zero."""


def block_starts(slots: int) -> NDArray[np.int64]:
    """Return int64[levels + 1]: where each level of extremes over ``slots`` values begins."""
    return level_starts(-(-slots // BLOCK), BLOCK)


def empty_largest(starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the tree of largest values over no live value at all."""
    return aligned_full(int(starts[-1]), DEAD_PRIORITY)


def empty_smallest(starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the tree of smallest values over no live value at all."""
    return aligned_full(int(starts[-1]), np.inf)


def top(upper: NDArray[np.float64], starts: NDArray[np.int64]) -> float:
    """Return the extreme of all values; `DEAD_PRIORITY` or ``inf`` if there is none."""
    return float(upper[starts[-2]])


@kernel
def _largest_of(values: NDArray[np.float64], start: int, stop: int, enough: float) -> float:
    """Return the largest of ``values[start:stop]``; the scan ends early at one that is at least ``enough``."""
    largest = DEAD_PRIORITY
    for i in range(start, stop):
        if values[i] > largest:
            largest = values[i]
            if largest >= enough:
                break
    return largest


@kernel
def _smallest_of(values: NDArray[np.float64], start: int, stop: int, floor: float, enough: float) -> float:
    """Return the smallest of ``values[start:stop]`` from ``floor`` on; ends early at one of at most ``enough``."""
    smallest = np.inf
    for i in range(start, stop):
        if floor <= values[i] < smallest:
            smallest = values[i]
            if smallest <= enough:
                break
    return smallest


@kernel
def _replace_largest(
    children: NDArray[np.float64], start: int, stop: int, extreme: float, old: float, new: float
) -> float:
    """Return the largest of a block, ``extreme`` before one of ``children[start:stop]`` went from old to new."""
    if new >= extreme:
        return new
    if old < extreme:
        return extreme
    return _largest_of(children, start, stop, extreme)


@kernel
def _replace_smallest(
    children: NDArray[np.float64], start: int, stop: int, floor: float, extreme: float, old: float, new: float
) -> float:
    """Return the smallest of a block, ``extreme`` before one of ``children[start:stop]`` went from old to new."""
    if new <= extreme:
        return new
    if old > extreme:
        return extreme
    return _smallest_of(children, start, stop, floor, extreme)


@kernel
def _raise_largest(upper: NDArray[np.float64], starts: NDArray[np.int64], block: int, old: float, new: float) -> None:
    """Bring the levels above up to date after the extreme of a lowest block went from ``old`` to ``new``."""
    for level in range(1, len(starts) - 1):
        first = starts[level - 1] + block // BLOCK * BLOCK
        block = block // BLOCK
        extreme = upper[starts[level] + block]
        changed = _replace_largest(upper, first, first + BLOCK, extreme, old, new)
        if changed == extreme:
            return
        upper[starts[level] + block] = changed
        old, new = extreme, changed


@kernel
def _raise_smallest(
    upper: NDArray[np.float64], starts: NDArray[np.int64], floor: float, block: int, old: float, new: float
) -> None:
    """Bring the levels above up to date after the extreme of a lowest block went from ``old`` to ``new``."""
    for level in range(1, len(starts) - 1):
        first = starts[level - 1] + block // BLOCK * BLOCK
        block = block // BLOCK
        extreme = upper[starts[level] + block]
        changed = _replace_smallest(upper, first, first + BLOCK, floor, extreme, old, new)
        if changed == extreme:
            return
        upper[starts[level] + block] = changed
        old, new = extreme, changed


@part_of_kernel
def prefetch_block(upper: NDArray[np.float64], slot: int) -> None:
    """Ask for the extreme of the block that a slot lies in."""
    prefetch(upper, slot // BLOCK)


@kernel
def follow_largest(
    values: NDArray[np.float64],
    upper: NDArray[np.float64],
    starts: NDArray[np.int64],
    slots: NDArray[np.int64],
    old_values: NDArray[np.float64],
) -> None:
    """Bring the tree of largest values up to date after some of them changed.

    Args:
        values: the values as they are now.
        upper: the tree.
        starts: where its levels begin.
        slots: int64[n], distinct: where values changed.
        old_values: float64[n]: what they were.
    """
    for i in range(len(slots)):
        slot = slots[i]
        block = slot // BLOCK
        extreme = upper[block]
        if values[slot] <= extreme and old_values[i] < extreme:
            continue
        first = block * BLOCK
        stop = min(first + BLOCK, len(values))
        changed = _replace_largest(values, first, stop, extreme, old_values[i], values[slot])
        if changed != extreme:
            upper[block] = changed
            _raise_largest(upper, starts, block, extreme, changed)


@kernel
def follow_smallest(
    values: NDArray[np.float64],
    upper: NDArray[np.float64],
    starts: NDArray[np.int64],
    floor: float,
    slots: NDArray[np.int64],
    old_values: NDArray[np.float64],
) -> None:
    """Bring the tree of smallest values from ``floor`` on up to date; arguments as for `follow_largest`."""
    for i in range(len(slots)):
        slot = slots[i]
        block = slot // BLOCK
        extreme = upper[block]
        old = old_values[i] if old_values[i] >= floor else np.inf
        new = values[slot] if values[slot] >= floor else np.inf
        if new >= extreme and old > extreme:
            continue
        first = block * BLOCK
        stop = min(first + BLOCK, len(values))
        changed = _replace_smallest(values, first, stop, floor, extreme, old, new)
        if changed != extreme:
            upper[block] = changed
            _raise_smallest(upper, starts, floor, block, extreme, changed)


@kernel
def gather_largest(values: NDArray[np.float64], upper: NDArray[np.float64], starts: NDArray[np.int64]) -> None:
    """Compute the whole tree of largest values."""
    upper[:] = DEAD_PRIORITY
    below = values
    below_start = 0
    below_stop = len(values)
    for level in range(len(starts) - 1):
        for first in range(below_start, below_stop, BLOCK):
            stop = min(first + BLOCK, below_stop)
            upper[starts[level] + (first - below_start) // BLOCK] = _largest_of(below, first, stop, np.inf)
        below, below_start, below_stop = upper, starts[level], starts[level + 1]


@kernel
def gather_smallest(
    values: NDArray[np.float64], upper: NDArray[np.float64], starts: NDArray[np.int64], floor: float
) -> None:
    """Compute the whole tree of smallest values."""
    upper[:] = np.inf
    below = values
    below_start = 0
    below_stop = len(values)
    for level in range(len(starts) - 1):
        for first in range(below_start, below_stop, BLOCK):
            stop = min(first + BLOCK, below_stop)
            upper[starts[level] + (first - below_start) // BLOCK] = _smallest_of(below, first, stop, floor, floor)
        below, below_start, below_stop = upper, starts[level], starts[level + 1]
