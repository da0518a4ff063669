"""Builds a tree, empty or from sorted rows."""

from __future__ import annotations

import numpy as np

from replay_server.backends.structures.rank_tree.nodes import (
    BEFORE_ALL,
    HEIGHT,
    ROOT,
    WIDTH,
    RankTree,
    allocate,
    free_all,
    resize,
    take_node,
)
from replay_server.kernels.compile import Floats, Integers, kernel

FILLED_ENTRIES = WIDTH * 3 // 4
"""Entries per node after `fill`, which leaves room for insertions and removals."""


def make_tree(slots: int) -> RankTree:
    """Create an empty tree with room for ``slots`` rows."""
    tree = allocate(slots)
    fill(tree, np.empty(0, dtype=np.float64), np.empty(0, dtype=np.int64))
    return tree


@kernel
def fill(tree: RankTree, priorities: Floats, keys: Integers) -> None:
    """Replace all rows with sorted ones. priorities: float64[n], in order of rank; keys: int64[n]."""
    free_all(tree)
    tree.state[HEIGHT] = 0
    children = np.empty(0, dtype=np.int64)
    nodes = _fill_level(tree, priorities, keys, children)
    while len(nodes) > 1:
        boundaries = np.empty(len(nodes), dtype=np.float64)
        boundary_keys = np.empty(len(nodes), dtype=np.int64)
        for i in range(len(nodes)):
            boundaries[i] = tree.priorities[nodes[i], 0] if i > 0 else BEFORE_ALL
            boundary_keys[i] = tree.keys[nodes[i], 0] if i > 0 else 0
        nodes = _fill_level(tree, boundaries, boundary_keys, nodes)
        tree.state[HEIGHT] += 1
    tree.state[ROOT] = nodes[0]


@kernel
def _fill_level(tree: RankTree, priorities: Floats, keys: Integers, children: Integers) -> Integers:
    """Distribute sorted entries evenly over new nodes, and return the nodes: leaves if ``children`` is empty."""
    entries = len(keys)
    count = max(1, -(-entries // FILLED_ENTRIES))
    nodes = np.empty(count, dtype=np.int64)
    for i in range(count):
        first, stop = i * entries // count, (i + 1) * entries // count
        node = take_node(tree, len(children) > 0)
        for at in range(first, stop):
            tree.priorities[node, at - first] = priorities[at]
            tree.keys[node, at - first] = keys[at]
            if len(children) > 0:
                tree.children[node, at - first] = children[at]
        resize(tree, node, stop - first)
        nodes[i] = node
    return nodes
