"""Checking every invariant of the tree: slow, for tests and for `RankIndex.check`."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.structures.invariants import require
from replay_server.backends.structures.rank_tree.nodes import (
    BEFORE_ALL,
    FREE_INNER,
    FREE_LEAF,
    HEIGHT,
    LEAST_ENTRIES,
    ROOT,
    UNUSED,
    WIDTH,
    RankTree,
)

Row = tuple[float, int]


def rows_in_order(tree: RankTree) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return priorities and keys of all rows in order of rank, checking the whole tree on the way.

    Raises:
        AssertionError: if the tree is not as it should be.
    """
    root, height = int(tree.state[ROOT]), int(tree.state[HEIGHT])
    require(height == 0 or tree.sizes[root] > 1, "an inner root has at least two children")
    leaves: list[int] = []
    inner: list[int] = []
    _check_node(tree, root, height, (BEFORE_ALL, 0), (UNUSED, 0), leaves, inner)
    _check_pool(tree, FREE_INNER, inner, range(len(tree.children)))
    _check_pool(tree, FREE_LEAF, leaves, range(len(tree.children), len(tree.sizes)))
    sizes = tree.sizes[leaves]
    places = np.arange(WIDTH) < sizes[:, None]
    return tree.priorities[leaves][places], tree.keys[leaves][places]


def _check_node(
    tree: RankTree, node: int, height: int, begin: Row, end: Row, leaves: list[int], inner: list[int]
) -> int:
    """Check a node and all under it, append them to ``leaves`` and ``inner``, and return the number of rows.

    Args:
        tree: the tree.
        node: which node.
        height: of the node; 0 for a leaf.
        begin: its boundary, which no row of it outranks.
        end: the next boundary, which every row of it outranks.
        leaves: leaves so far, in order.
        inner: inner nodes so far.
    """
    size = int(tree.sizes[node])
    least = 0 if node == tree.state[ROOT] else LEAST_ENTRIES
    require(least <= size <= WIDTH, "a node has neither too few entries nor too many")
    require(bool((tree.priorities[node, size:] == UNUSED).all()), "unused entries outrank nothing")
    entries = list(zip(tree.priorities[node, :size].tolist(), tree.keys[node, :size].tolist(), strict=True))
    if height == 0:
        leaves.append(node)
        require(not entries or begin >= entries[0] >= entries[-1] > end, "rows lie between two boundaries")
        return size
    inner.append(node)
    require(entries[0] == begin, "the first child of a node has the boundary of the node")
    rows = 0
    for at, (boundary, after) in enumerate(pairwise([*entries, end])):
        rows += _check_node(tree, int(tree.children[node, at]), height - 1, boundary, after, leaves, inner)
        require(rows == tree.rows_up_to[node, at], "a node counts the rows up to the end of each child")
    require(bool((tree.rows_up_to[node, size:] == rows).all()), "unused entries of a node repeat its number of rows")
    return rows


def _check_pool(tree: RankTree, pool: int, used: list[int], nodes: range) -> None:
    """Check that every one of ``nodes`` is either used or in the pool."""
    unused: list[int] = []
    node = int(tree.state[pool])
    while node in nodes and len(unused) < len(nodes):
        unused.append(node)
        node = int(tree.next_free[node])
    require(sorted([*used, *unused]) == list(nodes), "every node is either in the tree or in its pool")
