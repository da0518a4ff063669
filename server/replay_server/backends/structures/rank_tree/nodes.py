"""The arrays of the tree, the pools of unused nodes, and the entries of a node."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay_server.kernels.compile import Floats, Integers, aligned_empty, kernel, part_of_kernel
from replay_server.kernels.prefetch import touch

WIDTH = 32
"""Maximum entries per node."""

LEAST_ENTRIES = WIDTH * 3 // 8
"""Minimum entries per node, except for the root."""

MERGED_ENTRIES = WIDTH * 7 // 8
"""Neighbors with at most this many entries together are merged; larger neighbors are rebalanced."""

MOST_RANKED = (1 << 31) - 1
"""Maximum rows per tree: counts are int32."""

UNUSED = -np.inf
"""Priority of unused entries; every row outranks them."""

BEFORE_ALL = np.inf
"""Priority of the first boundary at each level; outranks every row."""

ROOT, HEIGHT, FREE_INNER, FREE_LEAF, STATE_WORDS = range(5)
"""Indices into `RankTree.state`, and their number."""


class RankTree(NamedTuple):
    """The arrays of a tree. Nodes are numbered: inner nodes come first, then leaves."""

    priorities: Floats
    """float64[nodes, WIDTH]: priority of each row or boundary, in order of rank, then `UNUSED`."""
    keys: Integers
    """int64[nodes, WIDTH]: key of each row or boundary."""
    sizes: NDArray[np.int32]
    """int32[nodes]: number of entries."""
    children: NDArray[np.int32]
    """int32[inner nodes, WIDTH]: child node of each entry."""
    rows_up_to: NDArray[np.int32]
    """int32[inner nodes, WIDTH]: number of rows under this child and earlier ones; in unused entries, all rows."""
    next_free: NDArray[np.int32]
    """int32[nodes]: for each unused node, the next unused one."""
    state: Integers
    """int64[STATE_WORDS]: the root, the number of levels above the leaves, and the first unused node of each pool."""


def allocate(slots: int) -> RankTree:
    """Allocate the arrays of a tree with room for ``slots`` rows; call `fill` next."""
    leaves = slots // LEAST_ENTRIES + 1
    inner = 1
    level = leaves
    while level > 1:
        level = level // LEAST_ENTRIES + 1
        inner += level
    nodes = inner + leaves
    return RankTree(
        priorities=aligned_empty((nodes, WIDTH), np.float64),
        keys=aligned_empty((nodes, WIDTH), np.int64),
        sizes=np.zeros(nodes, dtype=np.int32),
        children=aligned_empty((inner, WIDTH), np.int32),
        rows_up_to=aligned_empty((inner, WIDTH), np.int32),
        next_free=np.empty(nodes, dtype=np.int32),
        state=np.zeros(STATE_WORDS, dtype=np.int64),
    )


@kernel
def free_all(tree: RankTree) -> None:
    """Free all nodes. Low numbers are used first, so that the memory of nodes never used stays untouched."""
    for node in range(len(tree.next_free)):
        tree.next_free[node] = node + 1
    tree.state[FREE_INNER] = 0
    tree.state[FREE_LEAF] = len(tree.children)


@part_of_kernel
def is_inner(tree: RankTree, node: int) -> bool:
    """Return whether a node is an inner node, and not a leaf."""
    return node < len(tree.children)


@kernel
def take_node(tree: RankTree, inner: bool) -> int:
    """Take an unused node from its pool, and return it."""
    pool = FREE_INNER if inner else FREE_LEAF
    node = int(tree.state[pool])
    tree.state[pool] = tree.next_free[node]
    tree.sizes[node] = 0
    return node


@kernel
def free_node(tree: RankTree, node: int) -> None:
    """Return a node to its pool."""
    pool = FREE_INNER if is_inner(tree, node) else FREE_LEAF
    tree.next_free[node] = tree.state[pool]
    tree.state[pool] = node


@kernel
def copy_entry(tree: RankTree, source: int, at: int, target: int, to: int) -> None:
    """Copy an entry between nodes of the same height."""
    tree.priorities[target, to] = tree.priorities[source, at]
    tree.keys[target, to] = tree.keys[source, at]
    if is_inner(tree, source):
        tree.children[target, to] = tree.children[source, at]


@kernel
def resize(tree: RankTree, node: int, size: int) -> None:
    """Set the number of entries, mark the others as unused, and count the rows under an inner node."""
    tree.sizes[node] = size
    for at in range(size, WIDTH):
        tree.priorities[node, at] = UNUSED
    if is_inner(tree, node):
        rows = 0
        for at in range(WIDTH):
            if at < size:
                rows += rows_under(tree, tree.children[node, at])
            tree.rows_up_to[node, at] = rows


@kernel
def rows_under(tree: RankTree, node: int) -> int:
    """Return the number of rows in or under a node."""
    return int(tree.rows_up_to[node, WIDTH - 1] if is_inner(tree, node) else tree.sizes[node])


@part_of_kernel
def add_rows(tree: RankTree, node: int, at: int, change: int) -> None:
    """Update an inner node's counts after a child gained ``change`` rows (negative: lost)."""
    rows_up_to = tree.rows_up_to[node]
    for i in range(len(rows_up_to)):
        rows_up_to[i] += change if i >= at else 0


@part_of_kernel
def place_of(tree: RankTree, node: int, priority: float, key: int) -> int:
    """Return how many entries of a node outrank a row."""
    priorities = tree.priorities[node]
    place = 0
    for at in range(len(priorities)):  # not WIDTH: LLVM unrolls loops of known length before vectorizing them
        place += priorities[at] > priority
    while place < WIDTH and tree.priorities[node, place] == priority and tree.keys[node, place] > key:
        place += 1
    return place


@part_of_kernel
def child_for(tree: RankTree, node: int, priority: float, key: int) -> int:
    """Return the index of the child for a row: the last child whose boundary equals or outranks the row."""
    return place_of(tree, node, priority, key - 1) - 1


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


@kernel
def keys_of_ranks(tree: RankTree, ranks: Integers) -> Integers:
    """Return the keys of the rows with these ranks; rank 0 has the largest priority. Descends level by level."""
    left = ranks.astype(np.int32)
    nodes = np.full(len(ranks), tree.state[ROOT])
    for _ in range(tree.state[HEIGHT]):
        for i in range(len(nodes)):
            rows_up_to, rank = tree.rows_up_to[nodes[i]], left[i]
            at = np.int32(0)
            for entry in range(len(rows_up_to)):
                at += np.int32(rows_up_to[entry] <= rank)
            left[i] = rank - (rows_up_to[at - 1] if at > 0 else 0)
            nodes[i] = tree.children[nodes[i], at]
    for i in range(len(nodes)):
        touch(tree.keys, nodes[i] * WIDTH + left[i])
    for i in range(len(nodes)):
        nodes[i] = tree.keys[nodes[i], left[i]]
    return nodes


def largest_priority(tree: RankTree) -> float:
    """Return the priority of the first row; there is at least one row."""
    node = tree.state[ROOT]
    for _ in range(tree.state[HEIGHT]):
        node = tree.children[node, 0]
    return float(tree.priorities[node, 0])


def smallest_priority(tree: RankTree) -> float:
    """Return the priority of the last row; there is at least one row."""
    node = tree.state[ROOT]
    for _ in range(tree.state[HEIGHT]):
        node = tree.children[node, tree.sizes[node] - 1]
    return float(tree.priorities[node, tree.sizes[node] - 1])
