"""Where a row belongs in a leaf or node.

Entries are sorted, so a row's place is the number of entries that outrank it. Priorities alone tell it unless one is
equal to the row's: they are counted, all of a cache line at once and without a branch, and keys are looked at only then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.compile import kernel, part_of_kernel
from replay_server.backends.lines import LINE, count_above
from replay_server.backends.ranking.structure import GROUP, GROUPS, LEAF_ROWS, NODE_CHILDREN, Ranking


@part_of_kernel
def among_equals(
    priorities: NDArray[np.float64], keys: NDArray[np.int64], row: int, start: int, stop: int, priority: float, key: int
) -> int:
    """Return where a row would go among the sorted entries ``start:stop`` of one leaf or node; found by halving."""
    width = stop - start
    while width > 0:
        half = (width + 1) // 2
        entry = priorities[row, start + half - 1]
        outranks = (entry > priority) | ((entry == priority) & (keys[row, start + half - 1] > key))
        start += half * outranks
        width -= half
    return start


@part_of_kernel
def above_in_leaf(leaf_priority: NDArray[np.float64], leaf: int, priority: float) -> int:
    """Return how many rows of a leaf have a larger priority."""
    first = leaf * LEAF_ROWS
    above = count_above(leaf_priority, first, priority)
    for row in range(first + LINE, first + LEAF_ROWS, LINE):
        above += count_above(leaf_priority, row, priority)
    return above


@part_of_kernel
def group_above(group_priority: NDArray[np.float64], node: int, priority: float) -> int:
    """Return which group of a node's children is the last to begin with a larger priority; the first if none is."""
    return max(count_above(group_priority, node * GROUPS, priority) - 1, 0)


@part_of_kernel
def above_in_node(node_priority: NDArray[np.float64], node: int, group: int, priority: float) -> int:
    """Return how many boundaries of a node have a larger priority; ``group`` is by `group_above`."""
    first = group * GROUP
    return first + count_above(node_priority, node * NODE_CHILDREN + first, priority)


@kernel
def child_for(ranking: Ranking, node: int, priority: float, key: int) -> int:
    """Return which child of a node a row belongs to: the last whose boundary is the row itself or outranks it."""
    at = above_in_node(ranking.node_priority, node, group_above(ranking.group_priority, node, priority), priority)
    at = among_equals(
        ranking.node_priority, ranking.node_key, node, at, ranking.node_size[node], priority, key - 1
    )
    return max(at - 1, 0)
