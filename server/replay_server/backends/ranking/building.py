"""Making a tree, empty or out of sorted rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.compile import kernel
from replay_server.backends.ranking.balance import set_child
from replay_server.backends.ranking.structure import (
    BEFORE_ALL,
    HEIGHT,
    LEAF_ROWS,
    NEWEST,
    NODE_CHILDREN,
    ROOT,
    ROW_KEYS,
    Ranking,
    allocate,
    empty_pools,
    resize_leaf,
    resize_node,
    take_leaf,
    take_node,
)

BULK_FILL = 3 / 4
"""How full leaves and nodes are when built from sorted rows: room for insertions, and some for removals."""


def make_ranking(slots: int) -> Ranking:
    """Return an empty ranking with room for ``slots`` rows, whatever the order they come and go in."""
    ranking = allocate(slots)
    fill(ranking, np.empty(0, dtype=np.float64), np.empty(0, dtype=np.int64))
    return ranking


@kernel
def fill(ranking: Ranking, priorities: NDArray[np.float64], keys: NDArray[np.int64]) -> None:
    """Replace all rows by sorted ones.

    Args:
        ranking: the tree.
        priorities: float64[n] in order of rank.
        keys: int64[n], their keys, within `MOST_SLOTS` of each other.
    """
    empty_pools(ranking)
    rows = len(keys)
    ranking.words[NEWEST] = 0
    for i in range(rows):
        ranking.words[NEWEST] = max(ranking.words[NEWEST], keys[i])
    leaves = max(1, -(-rows // int(LEAF_ROWS * BULK_FILL)))
    level = np.empty(leaves, dtype=np.int64)
    counts = np.empty(leaves, dtype=np.int64)
    firsts = np.empty(leaves, dtype=np.int64)
    for i in range(leaves):
        # Evenly, so that none is nearly empty.
        first = i * rows // leaves
        size = (i + 1) * rows // leaves - first
        leaf = take_leaf(ranking)
        for row in range(size):
            ranking.leaf_floats[leaf, row] = priorities[first + row]
            ranking.leaf_ints[leaf, ROW_KEYS + row] = np.int32(keys[first + row])
        resize_leaf(ranking, leaf, size)
        level[i], counts[i], firsts[i] = leaf, size, first
    height = 0
    width = leaves
    while height == 0 or width > 1:
        nodes = -(-width // int(NODE_CHILDREN * BULK_FILL))
        for i in range(nodes):
            start = i * width // nodes
            stop = (i + 1) * width // nodes
            node = take_node(ranking)
            total = 0
            for j in range(start, stop):
                first = firsts[j]
                priority = priorities[first] if first > 0 else BEFORE_ALL
                key = keys[first] if first > 0 else 0
                set_child(ranking, node, j - start, priority, key, level[j], counts[j])
                total += counts[j]
            resize_node(ranking, node, stop - start)
            level[i], counts[i], firsts[i] = node, total, firsts[start]
        width = nodes
        height += 1
    ranking.words[ROOT] = level[0]
    ranking.words[HEIGHT] = height
