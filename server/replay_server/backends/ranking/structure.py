"""The arrays of the B-tree, the pools that leaves and nodes are taken from, and what a node keeps of its groups."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.compile import aligned_empty, kernel
from replay_server.backends.lines import LINE

LEAF_ROWS = 32
"""Most rows in a leaf."""

NODE_CHILDREN = 64
"""Most children of a node."""

GROUP = LINE
"""Children of a node that lie in one cache line."""

GROUPS = NODE_CHILDREN // GROUP
"""Groups of a node: what is kept of them is one cache line, too."""

ROW_PRIORITIES, ROW_KEYS, LEAF_WORDS = 0, LEAF_ROWS, 2 * LEAF_ROWS
"""Where the parts of a leaf begin, in words of eight bytes, and how long it is.

Everything of a leaf, and of a node, lies together: with millions of rows it is not so much the cache lines that take
time as the pages they lie in, whose addresses have to be looked up.
"""

GROUP_PRIORITIES, GROUP_COUNTS, PRIORITIES = 0, GROUPS, 2 * GROUPS
COUNTS, CHILDREN, KEYS, NODE_WORDS = (PRIORITIES + part * NODE_CHILDREN for part in range(1, 5))
"""Where the parts of a node begin, and how long it is."""

LEAST_FILL = 3 / 8
"""How full a leaf or node is at least. What a split or a refill leaves is well away from this and from full, so it
takes many writes until the next one."""

LEAST_ROWS = int(LEAF_ROWS * LEAST_FILL)
LEAST_CHILDREN = int(NODE_CHILDREN * LEAST_FILL)

MOST_MOVED = 512
"""Most rows that are moved at once: enough for their cache misses to overlap, and few enough for the leaves they
lie in to stay in the second-level cache until they are written to."""

NO_PRIORITY = -np.inf
"""What stands in the unused places of leaves and nodes: it outranks nothing."""

BEFORE_ALL = np.inf
"""Boundary of the first child of the first node of each height: every row may belong there."""

ROOT, HEIGHT, FREE_LEAVES, FREE_NODES = range(4)
"""Places in `Ranking.words`."""


class Ranking(NamedTuple):
    """The arrays of one B-tree. A leaf or node is a row of them, and each row begins with a cache line."""

    leaf_floats: NDArray[np.float64]
    """float64[leaves, LEAF_WORDS]: from `ROW_PRIORITIES` on the priorities of a leaf's rows, in order of rank, then
    `NO_PRIORITY`."""
    leaf_ints: NDArray[np.int64]
    """int64[leaves, LEAF_WORDS], the same memory: from `ROW_KEYS` on their keys."""
    leaf_size: NDArray[np.int8]
    """int8[leaves]: number of a leaf's rows."""
    node_floats: NDArray[np.float64]
    """float64[nodes, NODE_WORDS]: from `GROUP_PRIORITIES` on the priority of the boundary of the first child of each
    group; from `PRIORITIES` on that of each child, then `NO_PRIORITY`."""
    node_ints: NDArray[np.int64]
    """int64[nodes, NODE_WORDS], the same memory: from `GROUP_COUNTS` on the number of rows under each group; from
    `COUNTS` on that under each child, then 0; from `CHILDREN` on the children, which are leaves in a node of height 1,
    else nodes; from `KEYS` on the key of the boundary of each."""
    node_size: NDArray[np.int8]
    """int8[nodes]: number of a node's children."""
    free_leaves: NDArray[np.int64]
    """int64[leaves]: a stack of leaves that are not in use."""
    free_nodes: NDArray[np.int64]
    """int64[nodes]: a stack of nodes that are not in use."""
    words: NDArray[np.int64]
    """int64[4]: the root node, its height, and the lengths of the two stacks."""


def allocate(slots: int) -> Ranking:
    """Return the arrays of a ranking with room for ``slots`` rows, whatever the order they come and go in."""
    # Rows are put in before leaves that others left too empty are refilled: for each half leaf of them one more.
    leaves = slots // LEAST_ROWS + 2 + MOST_MOVED // (LEAF_ROWS // 2)
    nodes = 2
    level = leaves
    while level > 1:
        level = level // LEAST_CHILDREN + 1
        nodes += level + 1
    leaf_floats = _lines(leaves, LEAF_WORDS)
    node_floats = _lines(nodes, NODE_WORDS)
    return Ranking(
        leaf_floats=leaf_floats,
        leaf_ints=leaf_floats.view(np.int64),
        leaf_size=np.zeros(leaves, dtype=np.int8),
        node_floats=node_floats,
        node_ints=node_floats.view(np.int64),
        node_size=np.zeros(nodes, dtype=np.int8),
        free_leaves=np.empty(leaves, dtype=np.int64),
        free_nodes=np.empty(nodes, dtype=np.int64),
        words=np.zeros(4, dtype=np.int64),
    )


def nbytes(ranking: Ranking) -> int:
    """Return how much memory a ranking reserves."""
    return sum(array.nbytes for array in ranking) - ranking.leaf_ints.nbytes - ranking.node_ints.nbytes


def _lines(rows: int, width: int) -> NDArray[np.float64]:
    """Return float64[rows, width], not yet written to, that begins with a cache line."""
    return aligned_empty(rows * width).reshape(rows, width)


@kernel
def take_leaf(ranking: Ranking) -> int:
    """Take an empty leaf from the pool."""
    ranking.words[FREE_LEAVES] -= 1
    leaf = int(ranking.free_leaves[ranking.words[FREE_LEAVES]])
    resize_leaf(ranking, leaf, 0)
    return leaf


@kernel
def take_node(ranking: Ranking) -> int:
    """Take an empty node from the pool."""
    ranking.words[FREE_NODES] -= 1
    node = int(ranking.free_nodes[ranking.words[FREE_NODES]])
    resize_node(ranking, node, 0)
    return node


@kernel
def give_back_leaf(ranking: Ranking, leaf: int) -> None:
    """Put a leaf back into the pool."""
    ranking.free_leaves[ranking.words[FREE_LEAVES]] = leaf
    ranking.words[FREE_LEAVES] += 1


@kernel
def give_back_node(ranking: Ranking, node: int) -> None:
    """Put a node back into the pool."""
    ranking.free_nodes[ranking.words[FREE_NODES]] = node
    ranking.words[FREE_NODES] += 1


@kernel
def empty_pools(ranking: Ranking) -> None:
    """Make every leaf and node free, lowest numbers first: what was never taken is memory never touched."""
    leaves = len(ranking.free_leaves)
    for i in range(leaves):
        ranking.free_leaves[i] = leaves - 1 - i
    nodes = len(ranking.free_nodes)
    for i in range(nodes):
        ranking.free_nodes[i] = nodes - 1 - i
    ranking.words[FREE_LEAVES] = leaves
    ranking.words[FREE_NODES] = nodes


@kernel
def resize_leaf(ranking: Ranking, leaf: int, size: int) -> None:
    """Say how many rows a leaf has, and mark the places after them as unused."""
    ranking.leaf_size[leaf] = size
    for i in range(size, LEAF_ROWS):
        ranking.leaf_floats[leaf, i] = NO_PRIORITY


@kernel
def resize_node(ranking: Ranking, node: int, size: int) -> None:
    """Say how many children a node has, mark the places after them as unused, and sum up its groups anew.

    To be called after every change to a node but that of a count.
    """
    ranking.node_size[node] = size
    for i in range(size, NODE_CHILDREN):
        ranking.node_floats[node, PRIORITIES + i] = NO_PRIORITY
        ranking.node_ints[node, COUNTS + i] = 0
    for group in range(GROUPS):
        ranking.node_floats[node, GROUP_PRIORITIES + group] = ranking.node_floats[node, PRIORITIES + group * GROUP]
        rows = 0
        for i in range(group * GROUP, (group + 1) * GROUP):
            rows += ranking.node_ints[node, COUNTS + i]
        ranking.node_ints[node, GROUP_COUNTS + group] = rows


@kernel
def add_rows(ranking: Ranking, node: int, at: int, change: int) -> None:
    """Count rows that come to a child of a node, or leave it."""
    ranking.node_ints[node, COUNTS + at] += change
    ranking.node_ints[node, GROUP_COUNTS + at // GROUP] += change
