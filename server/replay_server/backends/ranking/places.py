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
    FIRST_GROUP,
    GROUP,
    GROUP_WORDS,
    KEYS,
    LEAF_ROWS,
    LEAF_WORDS,
    NODE_WORDS,
    ROW_KEYS,
    Ranking,
    boundary_at,
    newer_by,
)


@part_of_kernel
def among_equal_rows(
    leaf_floats: NDArray[np.float64],
    leaf_ints: NDArray[np.int32],
    leaf: int,
    start: int,
    stop: int,
    priority: float,
    key: int,
) -> int:
    """Return where a row would go among the rows ``start:stop`` of a leaf; found by halving.

    Args:
        leaf_floats: all leaves.
        leaf_ints: the same.
        leaf: which one.
        start: the first row to compare with.
        stop: the one after the last.
        priority: the row's.
        key: the row's.
    """
    width = stop - start
    while width > 0:
        half = (width + 1) // 2
        at = start + half - 1
        entry = leaf_floats[leaf, at]
        is_newer = newer_by(leaf_ints[leaf, ROW_KEYS + at], key) > 0
        start += half * ((entry > priority) | ((entry == priority) & is_newer))
        width -= half
    return start


@part_of_kernel
def among_equal_boundaries(
    node_floats: NDArray[np.float64],
    node_keys: NDArray[np.int64],
    node: int,
    start: int,
    stop: int,
    priority: float,
    key: int,
) -> int:
    """Return how many children of a node a row comes after or begins, of which the first ``start`` are known to be.

    Args:
        node_floats: all nodes.
        node_keys: the same.
        node: which one.
        start: the first child whose boundary is compared.
        stop: the one after the last.
        priority: the row's.
        key: the row's.
    """
    width = stop - start
    while width > 0:
        half = (width + 1) // 2
        at = start + half - 1
        entry = node_floats[node, boundary_at(at)]
        outranks = (entry > priority) | ((entry == priority) & (node_keys[node, KEYS + at] >= key))
        start += half * outranks
        width -= half
    return start


@part_of_kernel
def above_in_leaf(leaf_floats: NDArray[np.float64], leaf: int, priority: float) -> int:
    """Return how many rows of a leaf have a larger priority."""
    first = leaf * LEAF_WORDS
    above = count_above(leaf_floats, first, priority)
    for row in range(first + LINE, first + LEAF_ROWS, LINE):
        above += count_above(leaf_floats, row, priority)
    return above


@part_of_kernel
def group_above(node_floats: NDArray[np.float64], node: int, priority: float) -> int:
    """Return which group of a node's children is the last to begin with a larger priority; the first if none is."""
    return max(count_above(node_floats, node * NODE_WORDS, priority) - 1, 0)


@part_of_kernel
def above_in_node(node_floats: NDArray[np.float64], node: int, group: int, priority: float) -> int:
    """Return how many boundaries of a node have a larger priority; ``group`` is by `group_above`."""
    first = node * NODE_WORDS + FIRST_GROUP + group * GROUP_WORDS
    return group * GROUP + count_above(node_floats, first, priority)


@kernel
def child_for(ranking: Ranking, node: int, priority: float, key: int) -> int:
    """Return which child of a node a row belongs to: the last whose boundary is the row itself or outranks it."""
    group = group_above(ranking.node_floats, node, priority)
    at = above_in_node(ranking.node_floats, node, group, priority)
    size = ranking.node_size[node]
    at = among_equal_boundaries(ranking.node_floats, ranking.node_keys, node, at, size, priority, key)
    return max(at - 1, 0)
