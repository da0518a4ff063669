"""The arrays of the B-tree, where what lies in them, and the pools that leaves and nodes are taken from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.compile import aligned_empty, kernel, part_of_kernel
from replay_server.backends.lines import LINE

LEAF_ROWS = 32
"""Most rows in a leaf."""

NODE_CHILDREN = 64
"""Most children of a node."""

GROUP = LINE
"""Children of a node that lie in one cache line."""

GROUPS = NODE_CHILDREN // GROUP
"""Groups of a node: what is kept of them is one cache line, too."""

HALVES = 2
"""Integers of four bytes in a word of eight. Counts, places and the low halves of keys are that short: what a row needs
on its way through the tree is cache lines, and with these it needs 4 of a node and 6 of a leaf, not 6 and 8."""

MOST_SLOTS = (1 << 31) - 1
"""Most rows, so that they can be counted in four bytes, and a row's key be told from the low half of it."""

LEAF_WORDS = LEAF_ROWS + LEAF_ROWS // HALVES
"""How long a leaf is, in words: the priorities of its rows, and the low halves of their keys.

Everything of a leaf, and of a node, lies together: with millions of rows it is not so much the cache lines that take
time as the pages they lie in, whose addresses have to be looked up.
"""

ROW_KEYS = LEAF_ROWS * HALVES
"""Where the keys begin, in half words."""

GROUP_WORDS = 2 * LINE
"""How long a group is, in words: a line of boundaries' priorities, then a line of counts and children."""

GROUP_COUNTS = LINE * HALVES
"""Where in a node the numbers of rows under each group begin, in half words; before them are the groups' priorities."""

FIRST_GROUP = 2 * LINE
"""Where in a node its groups begin, in words."""

KEYS = FIRST_GROUP + GROUPS * GROUP_WORDS
"""Where in a node the keys of boundaries begin, in words. They are looked at only if priorities are equal."""

NODE_WORDS = KEYS + NODE_CHILDREN
"""How long a node is, in words."""

LEAST_FILL = 5 / 16
"""How full a leaf or node is at least. What a split or a refill leaves is well away from this and from full, so it
takes many writes until the next one."""

MERGED_FILL = 13 / 16
"""How full a leaf or node may be that two are merged into; if it would be fuller, they share what they have."""

LEAST_ROWS = int(LEAF_ROWS * LEAST_FILL)
LEAST_CHILDREN = int(NODE_CHILDREN * LEAST_FILL)
MERGED_ROWS = int(LEAF_ROWS * MERGED_FILL)
MERGED_CHILDREN = int(NODE_CHILDREN * MERGED_FILL)

MOST_MOVED = 512
"""Most rows that are moved at once: enough for their cache misses to overlap, and few enough for the leaves they
lie in to stay in the second-level cache until they are written to."""

NO_PRIORITY = -np.inf
"""What stands in the unused places of leaves and nodes: it outranks nothing."""

BEFORE_ALL = np.inf
"""Boundary of the first child of the first node of each height: every row may belong there."""

ROOT, HEIGHT, FREE_LEAVES, FREE_NODES, NEWEST, WORDS = range(6)
"""Places in `Ranking.words`, and how many there are."""


class Ranking(NamedTuple):
    """The arrays of one B-tree. A leaf or node is a row of them, and each row begins with a cache line."""

    leaf_floats: NDArray[np.float64]
    """float64[leaves, LEAF_WORDS]: the priorities of a leaf's rows, in order of rank, then `NO_PRIORITY`."""
    leaf_ints: NDArray[np.int32]
    """int32[leaves, 2 * LEAF_WORDS], the same memory: from `ROW_KEYS` on the low halves of their keys."""
    leaf_size: NDArray[np.int8]
    """int8[leaves]: number of a leaf's rows."""
    node_floats: NDArray[np.float64]
    """float64[nodes, NODE_WORDS]: at `boundary_at` the priority of a child's boundary, or `NO_PRIORITY` after the last
    child; in the first line those of the first child of each group."""
    node_ints: NDArray[np.int32]
    """int32[nodes, 2 * NODE_WORDS], the same memory: at `count_at` the number of rows under a child, or 0; at
    `child_at` the child, which is a leaf in a node of height 1, else a node; from `GROUP_COUNTS` on the number of rows
    under each group."""
    node_keys: NDArray[np.int64]
    """int64[nodes, NODE_WORDS], the same memory: from `KEYS` on the key of the boundary of each child."""
    node_size: NDArray[np.int8]
    """int8[nodes]: number of a node's children."""
    free_leaves: NDArray[np.int32]
    """int32[leaves]: a stack of leaves that are not in use."""
    free_nodes: NDArray[np.int32]
    """int32[nodes]: a stack of nodes that are not in use."""
    words: NDArray[np.int64]
    """int64[WORDS]: the root node, its height, the lengths of the two stacks, and the largest key since `fill`."""


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
        leaf_ints=leaf_floats.view(np.int32),
        leaf_size=np.zeros(leaves, dtype=np.int8),
        node_floats=node_floats,
        node_ints=node_floats.view(np.int32),
        node_keys=node_floats.view(np.int64),
        node_size=np.zeros(nodes, dtype=np.int8),
        free_leaves=np.empty(leaves, dtype=np.int32),
        free_nodes=np.empty(nodes, dtype=np.int32),
        words=np.zeros(WORDS, dtype=np.int64),
    )


def nbytes(ranking: Ranking) -> int:
    """Return how much memory a ranking reserves."""
    same_memory = ranking.leaf_ints.nbytes + ranking.node_ints.nbytes + ranking.node_keys.nbytes
    return sum(array.nbytes for array in ranking) - same_memory


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


@part_of_kernel
def boundary_at(at: int) -> int:
    """Return where in a node the priority of a child's boundary is, in words."""
    return FIRST_GROUP + at + (at & -GROUP) * (GROUP_WORDS // GROUP - 1)


@part_of_kernel
def count_at(at: int) -> int:
    """Return where in a node the number of rows under a child is, in half words."""
    return (FIRST_GROUP + LINE) * HALVES + at + (at & -GROUP) * (GROUP_WORDS * HALVES // GROUP - 1)


@part_of_kernel
def child_at(at: int) -> int:
    """Return where in a node a child is, in half words."""
    return count_at(at) + GROUP


@kernel
def resize_node(ranking: Ranking, node: int, size: int) -> None:
    """Say how many children a node has, mark the places after them as unused, and sum up its groups anew.

    To be called after every change to a node but those by `add_rows`.
    """
    ranking.node_size[node] = size
    for i in range(size, NODE_CHILDREN):
        ranking.node_floats[node, boundary_at(i)] = NO_PRIORITY
        ranking.node_ints[node, count_at(i)] = 0
    for group in range(GROUPS):
        ranking.node_floats[node, group] = ranking.node_floats[node, boundary_at(group * GROUP)]
        rows = 0
        for i in range(group * GROUP, (group + 1) * GROUP):
            rows += ranking.node_ints[node, count_at(i)]
        ranking.node_ints[node, GROUP_COUNTS + group] = rows


@kernel
def add_rows(ranking: Ranking, node: int, at: int, change: int) -> None:
    """Count rows that come to a child of a node, or leave it."""
    ranking.node_ints[node, count_at(at)] += change
    ranking.node_ints[node, GROUP_COUNTS + at // GROUP] += change


@part_of_kernel
def newer_by(low_half: int, key: int) -> int:
    """Return by how much the row whose key has this low half is newer than a row: they are near enough to tell."""
    return int(np.int32(low_half - key))


@part_of_kernel
def row_key(ranking: Ranking, leaf: int, at: int) -> int:
    """Return the key of a row in a leaf: one of the last `MOST_SLOTS` up to the newest, so its low half is enough."""
    newest = int(ranking.words[NEWEST])
    return newest + newer_by(ranking.leaf_ints[leaf, ROW_KEYS + at], newest)
