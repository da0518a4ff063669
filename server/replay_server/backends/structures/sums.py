"""A binary sum tree over an array of masses that stores only every third level.

A node of the binary tree is always recomputed as the sum of its two children, never adjusted by differences. So sums do
not drift: the root is exactly the pairwise sum of the masses. Eight neighboring masses fill one cache line. Storing the
two binary levels between the masses and their sum would cost a cache miss per level, but recomputing them takes only a
few additions. So the stored tree has fan-out 8 and takes 9.2 bytes per mass.

Batches are processed level by level, so that the cache misses of a level overlap. On levels too large for the L1 and L2
caches, entries are prefetched as soon as their indices are known.

Kernels here use these arrays:

* ``sums``: float64[...], the masses and then the stored levels above them; unused places hold 0.
* ``starts``: int64[levels + 1], where each level of ``sums`` begins, from `sum_starts`.
"""

from __future__ import annotations

import numpy as np

from replay_server.kernels.compile import Floats, Integers, kernel, part_of_kernel
from replay_server.kernels.prefetch import prefetch


def level_starts(leaves: int, fan_out: int) -> Integers:
    """Return int64[levels + 1]: where each level of a tree begins, from the leaves up, and the length of the array.

    Level 0 has one entry per leaf. Each entry of a higher level represents ``fan_out`` neighbors of the level below, up
    to a top level with a single entry. Each level is padded to a multiple of ``fan_out``, so any number of leaves
    works.

    There are at least two levels. The last level begins with the single entry at the top.
    """
    starts = [0]
    entries = leaves
    while True:
        groups = -(-entries // fan_out)
        starts.append(starts[-1] + groups * fan_out)
        if entries == 1 and len(starts) > 2:
            return np.array(starts, dtype=np.int64)
        entries = groups


FAN_OUT = 8
"""Children per stored node: each node replaces three binary levels, and its children fill one cache line."""

FAR_AWAY = 1 << 14
"""Levels with more entries than this (128 KiB) are prefetched."""


def sum_starts(slots: int) -> Integers:
    """Return int64[levels + 1]: where each stored level of sums over ``slots`` masses begins."""
    return level_starts(slots, FAN_OUT)


@kernel
def _add_up_node(sums: Floats, node: int, first: int) -> None:
    """Sum eight neighbors pairwise, like a binary tree."""
    left = (sums[first] + sums[first + 1]) + (sums[first + 2] + sums[first + 3])
    right = (sums[first + 4] + sums[first + 5]) + (sums[first + 6] + sums[first + 7])
    sums[node] = left + right


@kernel
def add_up_all(sums: Floats, starts: Integers) -> None:
    """Compute all levels above the masses."""
    for level in range(1, len(starts) - 1):
        below = starts[level - 1]
        for node in range((starts[level] - below) // FAN_OUT):
            _add_up_node(sums, starts[level] + node, below + node * FAN_OUT)


@kernel
def add_up_above(sums: Floats, starts: Integers, slots: Integers) -> None:
    """Recompute the levels above the masses in ``slots``. slots: int64[n], overwritten."""
    pending = len(slots)
    for level in range(1, len(starts) - 1):
        below = starts[level - 1]
        start = starts[level]
        width = (start - below) // FAN_OUT
        if width <= pending:
            # There are at least as many slots as nodes on this level: process every node once.
            for node in range(width):
                _add_up_node(sums, start + node, below + node * FAN_OUT)
                slots[node] = node
            pending = width
            continue
        kept = 0
        previous = -1
        for i in range(pending):
            node = slots[i] // FAN_OUT
            if node != previous:
                _add_up_node(sums, start + node, below + node * FAN_OUT)
                slots[kept] = node
                kept += 1
                previous = node
        pending = kept


@part_of_kernel
def prefetch_above(sums: Floats, starts: Integers, slot: int) -> None:
    """Prefetch what `add_up_above` reads for a slot: the slot, the sums above it, and the neighbors of each."""
    for level in range(len(starts) - 1):
        if starts[level + 1] - starts[level] > FAR_AWAY:
            prefetch(sums, starts[level] + slot)
        slot //= FAN_OUT


@kernel
def descend(sums: Floats, starts: Integers, points: Floats, nodes: Integers) -> None:
    """Store in ``nodes`` the slots at these points of the total mass, which must be positive. Overwrite ``points``.

    At every binary node, go right if the point is at least the left sum. Rounding can make a point too large for the
    node that it enters. Then the descent goes right at every node below, and may end at a slot without mass, or past
    the last slot. In this case, it returns the nearest slot with mass to the left.
    """
    nodes[:] = 0
    top = len(starts) - 3
    while top > 0 and sums[starts[top]] == sums[starts[-2]]:  # a ring that is far from full has all mass in front
        top -= 1
    for level in range(top, -1, -1):
        last = (starts[level + 1] - starts[level]) // FAN_OUT - 1
        for i in range(len(points)):
            point = points[i] if nodes[i] <= last else np.inf
            at = starts[level] + min(nodes[i], last) * FAN_OUT

            left = (sums[at] + sums[at + 1]) + (sums[at + 2] + sums[at + 3])
            goes_right = point >= left
            point -= left if goes_right else 0.0
            at += 4 if goes_right else 0

            left = sums[at] + sums[at + 1]
            goes_right = point >= left
            point -= left if goes_right else 0.0
            at += 2 if goes_right else 0

            left = sums[at]
            goes_right = point >= left
            points[i] = point - (left if goes_right else 0.0)
            nodes[i] = at + (1 if goes_right else 0) - starts[level]
        if level > 0 and starts[level] - starts[level - 1] > FAR_AWAY:
            for i in range(len(points)):
                prefetch(sums, starts[level - 1] + nodes[i] * FAN_OUT)
    for i in range(len(points)):
        while sums[nodes[i]] <= 0.0:
            nodes[i] -= 1
