"""Where a row belongs in a leaf or node.

Entries are sorted, so a row's place is the number of entries that outrank it. Priorities alone tell it unless one is
equal to the row's: they are counted, all of a cache line at once and without a branch, and keys are looked at only
then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.compile import kernel, part_of_kernel
from replay_server.backends.lines import LINE, count_above
from replay_server.backends.ranking.structure import (
    GROUP,
    GROUP_PRIORITIES,
    KEYS,
    LEAF_ROWS,
    LEAF_WORDS,
    NODE_WORDS,
    PRIORITIES,
    ROW_KEYS,
    ROW_PRIORITIES,
    Ranking,
)

IN_LEAF = (ROW_PRIORITIES, ROW_KEYS)
"""Where the priorities and keys of the sorted entries of a leaf begin."""

IN_NODE = (PRIORITIES, KEYS)
"""The same of a node."""


@part_of_kernel
def among_equals(
    floats: NDArray[np.float64],
    ints: NDArray[np.int64],
    row: int,
    layout: tuple[int, int],
    start: int,
    stop: int,
    priority: float,
    key: int,
) -> int:
    """Return where a row would go among the sorted entries ``start:stop`` of one leaf or node; found by halving.

    Args:
        floats: all leaves or nodes.
        ints: the same.
        row: which one.
        layout: where priorities begin in it, and where keys.
        start: the first entry to compare with.
        stop: the one after the last.
        priority: the row's.
        key: the row's.
    """
    first_priority, first_key = layout
    width = stop - start
    while width > 0:
        half = (width + 1) // 2
        entry = floats[row, first_priority + start + half - 1]
        outranks = (entry > priority) | ((entry == priority) & (ints[row, first_key + start + half - 1] > key))
        start += half * outranks
        width -= half
    return start


@part_of_kernel
def above_in_leaf(leaf_floats: NDArray[np.float64], leaf: int, priority: float) -> int:
    """Return how many rows of a leaf have a larger priority."""
    first = leaf * LEAF_WORDS + ROW_PRIORITIES
    above = count_above(leaf_floats, first, priority)
    for row in range(first + LINE, first + LEAF_ROWS, LINE):
        above += count_above(leaf_floats, row, priority)
    return above


@part_of_kernel
def group_above(node_floats: NDArray[np.float64], node: int, priority: float) -> int:
    """Return which group of a node's children is the last to begin with a larger priority; the first if none is."""
    return max(count_above(node_floats, node * NODE_WORDS + GROUP_PRIORITIES, priority) - 1, 0)


@part_of_kernel
def above_in_node(node_floats: NDArray[np.float64], node: int, group: int, priority: float) -> int:
    """Return how many boundaries of a node have a larger priority; ``group`` is by `group_above`."""
    first = group * GROUP
    return first + count_above(node_floats, node * NODE_WORDS + PRIORITIES + first, priority)


@kernel
def child_for(ranking: Ranking, node: int, priority: float, key: int) -> int:
    """Return which child of a node a row belongs to: the last whose boundary is the row itself or outranks it."""
    group = group_above(ranking.node_floats, node, priority)
    at = above_in_node(ranking.node_floats, node, group, priority)
    size = ranking.node_size[node]
    at = among_equals(ranking.node_floats, ranking.node_ints, node, IN_NODE, at, size, priority, key - 1)
    return max(at - 1, 0)
