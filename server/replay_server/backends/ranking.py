"""Rows in the order of their ranks: a counted B-tree in plain arrays.

A row outranks another if its priority is larger or, of equal priorities, if it is the newer one (the larger key).
Rows lie in this order in small sorted leaves. Over them stand nodes, each a sorted list of children with the number
of rows under each, up to one root. To find a row by its rank is to subtract counts on the way down; to find its
place is to compare it with the first row of each child.

* Leaves and nodes are rows of two-dimensional arrays, taken from a pool and given back to it when they empty, so
  memory does not grow however long a ring is written to.
* A batch of rows goes down level by level, counting itself on the way. A leaf too full for its next row is split
  in two, after every full node above it. Leaves left too empty are refilled from a neighbour, or merged with it,
  when the batch is done, and so are nodes. Every leaf and node but those at the root stays `LEAST_FILL` full.
* What a node keeps of a child is a boundary: the child's rows do not outrank it, and all rows of the children
  before it do. The row it came from may be gone. The boundary of the first child is never looked at.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.check import require
from replay_server.backends.compile import CACHE_LINE_BYTES, kernel

LEAF_ROWS = 32
"""Most rows in a leaf."""

NODE_CHILDREN = 64
"""Most children of a node."""

LEAST_FILL = 3 / 8
"""How full a leaf or node is at least. What a split or a refill leaves is well away from this and from full, so it
takes many writes until the next one."""

LEAST_ROWS = int(LEAF_ROWS * LEAST_FILL)
LEAST_CHILDREN = int(NODE_CHILDREN * LEAST_FILL)

BULK_FILL = 3 / 4
"""How full leaves and nodes are when built from sorted rows: room for insertions, and some for removals."""

_ROOT, _HEIGHT, _FREE_LEAVES, _FREE_NODES, _FETCHED = range(5)

_PER_CACHE_LINE = CACHE_LINE_BYTES // 8


class Ranking(NamedTuple):
    """The arrays of one B-tree. A leaf or node is a row of them."""

    leaf_priority: NDArray[np.float64]
    """float64[leaves, LEAF_ROWS]: priorities of a leaf's rows, in order of rank."""
    leaf_key: NDArray[np.int64]
    """int64[leaves, LEAF_ROWS]: their keys."""
    leaf_size: NDArray[np.int64]
    """int64[leaves]: number of a leaf's rows."""
    node_priority: NDArray[np.float64]
    """float64[nodes, NODE_CHILDREN]: boundary of each child, its priority."""
    node_key: NDArray[np.int64]
    """int64[nodes, NODE_CHILDREN]: boundary of each child, its key."""
    node_child: NDArray[np.int64]
    """int64[nodes, NODE_CHILDREN]: the children: leaves in a node of height 1, else nodes."""
    node_count: NDArray[np.int64]
    """int64[nodes, NODE_CHILDREN]: number of rows under each child."""
    node_size: NDArray[np.int64]
    """int64[nodes]: number of a node's children."""
    free_leaves: NDArray[np.int64]
    """int64[leaves]: a stack of leaves that are not in use."""
    free_nodes: NDArray[np.int64]
    """int64[nodes]: a stack of nodes that are not in use."""
    words: NDArray[np.int64]
    """int64[5]: the root node, its height, the lengths of the two stacks, and a place that `_fetch` writes to."""


def make_ranking(slots: int) -> Ranking:
    """Return an empty ranking with room for ``slots`` rows, whatever the order they come and go in."""
    leaves = slots // LEAST_ROWS + 2
    nodes = 2
    level = leaves
    while level > 1:
        level = level // LEAST_CHILDREN + 1
        nodes += level + 1
    ranking = Ranking(
        leaf_priority=np.empty((leaves, LEAF_ROWS), dtype=np.float64),
        leaf_key=np.empty((leaves, LEAF_ROWS), dtype=np.int64),
        leaf_size=np.zeros(leaves, dtype=np.int64),
        node_priority=np.empty((nodes, NODE_CHILDREN), dtype=np.float64),
        node_key=np.empty((nodes, NODE_CHILDREN), dtype=np.int64),
        node_child=np.empty((nodes, NODE_CHILDREN), dtype=np.int64),
        node_count=np.empty((nodes, NODE_CHILDREN), dtype=np.int64),
        node_size=np.zeros(nodes, dtype=np.int64),
        free_leaves=np.empty(leaves, dtype=np.int64),
        free_nodes=np.empty(nodes, dtype=np.int64),
        words=np.zeros(5, dtype=np.int64),
    )
    fill(ranking, np.empty(0, dtype=np.float64), np.empty(0, dtype=np.int64))
    return ranking


# ---------------------------------------------------------------------------------------------------------- pools


@kernel
def _take_leaf(ranking: Ranking) -> int:
    ranking.words[_FREE_LEAVES] -= 1
    leaf = int(ranking.free_leaves[ranking.words[_FREE_LEAVES]])
    ranking.leaf_size[leaf] = 0
    return leaf


@kernel
def _take_node(ranking: Ranking) -> int:
    ranking.words[_FREE_NODES] -= 1
    node = int(ranking.free_nodes[ranking.words[_FREE_NODES]])
    ranking.node_size[node] = 0
    return node


@kernel
def _give_back_leaf(ranking: Ranking, leaf: int) -> None:
    ranking.free_leaves[ranking.words[_FREE_LEAVES]] = leaf
    ranking.words[_FREE_LEAVES] += 1


@kernel
def _give_back_node(ranking: Ranking, node: int) -> None:
    ranking.free_nodes[ranking.words[_FREE_NODES]] = node
    ranking.words[_FREE_NODES] += 1


@kernel
def _empty_pools(ranking: Ranking) -> None:
    """Make every leaf and node free, lowest numbers first: what was never taken is memory never touched."""
    leaves = len(ranking.free_leaves)
    for i in range(leaves):
        ranking.free_leaves[i] = leaves - 1 - i
    nodes = len(ranking.free_nodes)
    for i in range(nodes):
        ranking.free_nodes[i] = nodes - 1 - i
    ranking.words[_FREE_LEAVES] = leaves
    ranking.words[_FREE_NODES] = nodes


# ---------------------------------------------------------------------------------------------------------- order


@kernel
def _outranking(
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


@kernel
def _child_for(
    node_priority: NDArray[np.float64], node_key: NDArray[np.int64], node: int, size: int, priority: float, key: int
) -> int:
    """Return which child of a node a row belongs to: the last whose boundary is the row itself or outranks it."""
    return _outranking(node_priority, node_key, node, 1, size, priority, key - 1) - 1


# ------------------------------------------------------------------------------------------- moving runs of entries


@kernel
def _open_gap(priorities: NDArray[np.float64], keys: NDArray[np.int64], leaf: int, at: int, size: int) -> None:
    """Move the rows of a leaf from ``at`` on up by one place."""
    for i in range(size - 1, at - 1, -1):
        priorities[leaf, i + 1] = priorities[leaf, i]
        keys[leaf, i + 1] = keys[leaf, i]


@kernel
def _close_gap(priorities: NDArray[np.float64], keys: NDArray[np.int64], leaf: int, at: int, size: int) -> None:
    """Move the rows of a leaf after ``at`` down by one place."""
    for i in range(at, size - 1):
        priorities[leaf, i] = priorities[leaf, i + 1]
        keys[leaf, i] = keys[leaf, i + 1]


@kernel
def _move_rows(ranking: Ranking, source: int, first: int, count: int, target: int, at: int) -> None:
    """Copy ``count`` rows of one leaf over those of a leaf, which may be the same, from ``at`` on."""
    if source == target and at > first:
        for i in range(count - 1, -1, -1):
            ranking.leaf_priority[target, at + i] = ranking.leaf_priority[source, first + i]
            ranking.leaf_key[target, at + i] = ranking.leaf_key[source, first + i]
    else:
        for i in range(count):
            ranking.leaf_priority[target, at + i] = ranking.leaf_priority[source, first + i]
            ranking.leaf_key[target, at + i] = ranking.leaf_key[source, first + i]


@kernel
def _move_child(ranking: Ranking, source: int, first: int, target: int, at: int) -> None:
    """Copy one entry of a node over one of a node."""
    ranking.node_priority[target, at] = ranking.node_priority[source, first]
    ranking.node_key[target, at] = ranking.node_key[source, first]
    ranking.node_child[target, at] = ranking.node_child[source, first]
    ranking.node_count[target, at] = ranking.node_count[source, first]


@kernel
def _move_children(ranking: Ranking, source: int, first: int, count: int, target: int, at: int) -> int:
    """Copy ``count`` entries of one node over those of a node, from ``at`` on; return the rows under them."""
    rows = 0
    for step in range(count):
        i = count - 1 - step if source == target and at > first else step
        rows += ranking.node_count[source, first + i]
        _move_child(ranking, source, first + i, target, at + i)
    return rows


@kernel
def _insert_child(ranking: Ranking, node: int, at: int, priority: float, key: int, child: int, count: int) -> None:
    """Add a child to a node that has room for it."""
    _move_children(ranking, node, at, ranking.node_size[node] - at, node, at + 1)
    ranking.node_priority[node, at] = priority
    ranking.node_key[node, at] = key
    ranking.node_child[node, at] = child
    ranking.node_count[node, at] = count
    ranking.node_size[node] += 1


@kernel
def _remove_child(ranking: Ranking, node: int, at: int) -> None:
    """Take a child out of a node."""
    _move_children(ranking, node, at + 1, ranking.node_size[node] - at - 1, node, at)
    ranking.node_size[node] -= 1


# -------------------------------------------------------------------------------------------------------- splitting


@kernel
def _split_leaf(ranking: Ranking, parent: int, at: int) -> None:
    """Move the second half of a leaf to a new one beside it."""
    left = ranking.node_child[parent, at]
    kept = ranking.leaf_size[left] // 2
    moved = ranking.leaf_size[left] - kept
    right = _take_leaf(ranking)
    _move_rows(ranking, left, kept, moved, right, 0)
    ranking.leaf_size[left] = kept
    ranking.leaf_size[right] = moved
    ranking.node_count[parent, at] -= moved
    _insert_child(ranking, parent, at + 1, ranking.leaf_priority[right, 0], ranking.leaf_key[right, 0], right, moved)


@kernel
def _split_node(ranking: Ranking, parent: int, at: int) -> None:
    """Move the second half of a node's children to a new node beside it."""
    left = ranking.node_child[parent, at]
    kept = ranking.node_size[left] // 2
    moved = ranking.node_size[left] - kept
    right = _take_node(ranking)
    rows = _move_children(ranking, left, kept, moved, right, 0)
    ranking.node_size[left] = kept
    ranking.node_size[right] = moved
    ranking.node_count[parent, at] -= rows
    _insert_child(ranking, parent, at + 1, ranking.node_priority[right, 0], ranking.node_key[right, 0], right, rows)


@kernel
def _raise_root(ranking: Ranking) -> None:
    """Put a new root over the old one, and split that."""
    old = ranking.words[_ROOT]
    rows = 0
    for i in range(ranking.node_size[old]):
        rows += ranking.node_count[old, i]
    root = _take_node(ranking)
    _insert_child(ranking, root, 0, 0.0, 0, old, rows)
    ranking.words[_ROOT] = root
    ranking.words[_HEIGHT] += 1
    _split_node(ranking, root, 0)


# -------------------------------------------------------------------------------------------------------- refilling


@kernel
def _share_rows(ranking: Ranking, parent: int, at: int) -> None:
    """Share the rows of the leaves ``at`` and ``at + 1`` evenly, or merge them if one leaf holds them with ease."""
    left = ranking.node_child[parent, at]
    right = ranking.node_child[parent, at + 1]
    left_size = ranking.leaf_size[left]
    right_size = ranking.leaf_size[right]
    together = left_size + right_size
    if together <= LEAF_ROWS - LEAST_ROWS // 2:
        _move_rows(ranking, right, 0, right_size, left, left_size)
        ranking.leaf_size[left] = together
        ranking.node_count[parent, at] = together
        _remove_child(ranking, parent, at + 1)
        _give_back_leaf(ranking, right)
        return
    kept = together // 2
    if left_size < kept:
        moved = kept - left_size
        _move_rows(ranking, right, 0, moved, left, left_size)
        _move_rows(ranking, right, moved, right_size - moved, right, 0)
    else:
        moved = left_size - kept
        _move_rows(ranking, right, 0, right_size, right, moved)
        _move_rows(ranking, left, kept, moved, right, 0)
    ranking.leaf_size[left] = kept
    ranking.leaf_size[right] = together - kept
    ranking.node_count[parent, at] = kept
    ranking.node_count[parent, at + 1] = together - kept
    ranking.node_priority[parent, at + 1] = ranking.leaf_priority[right, 0]
    ranking.node_key[parent, at + 1] = ranking.leaf_key[right, 0]


@kernel
def _share_children(ranking: Ranking, parent: int, at: int) -> None:
    """Do the same with the children of the nodes ``at`` and ``at + 1``."""
    left = ranking.node_child[parent, at]
    right = ranking.node_child[parent, at + 1]
    left_size = ranking.node_size[left]
    right_size = ranking.node_size[right]
    together = left_size + right_size
    if together <= NODE_CHILDREN - LEAST_CHILDREN // 2:
        rows = _move_children(ranking, right, 0, right_size, left, left_size)
        ranking.node_size[left] = together
        ranking.node_count[parent, at] += rows
        _remove_child(ranking, parent, at + 1)
        _give_back_node(ranking, right)
        return
    kept = together // 2
    if left_size < kept:
        moved = kept - left_size
        rows = _move_children(ranking, right, 0, moved, left, left_size)
        _move_children(ranking, right, moved, right_size - moved, right, 0)
    else:
        moved = left_size - kept
        _move_children(ranking, right, 0, right_size, right, moved)
        rows = -_move_children(ranking, left, kept, moved, right, 0)
    ranking.node_size[left] = kept
    ranking.node_size[right] = together - kept
    ranking.node_count[parent, at] += rows
    ranking.node_count[parent, at + 1] -= rows
    ranking.node_priority[parent, at + 1] = ranking.node_priority[right, 0]
    ranking.node_key[parent, at + 1] = ranking.node_key[right, 0]


@kernel
def _lower_root(ranking: Ranking) -> None:
    """Drop a root that has a single child, unless that is a leaf."""
    while ranking.words[_HEIGHT] > 1 and ranking.node_size[ranking.words[_ROOT]] == 1:
        root = ranking.words[_ROOT]
        ranking.words[_ROOT] = ranking.node_child[root, 0]
        ranking.words[_HEIGHT] -= 1
        _give_back_node(ranking, root)


# ------------------------------------------------------------------------------------------------------- operations


@kernel
def _fetch(
    words: NDArray[np.int64],
    priorities: NDArray[np.float64],
    keys: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> None:
    """Bring all cache lines of some leaves close, at once, before they are worked on one after the other.

    The loads do not depend on each other, so hundreds of cache misses overlap: at a million rows, a write is three
    times as fast with this as without. What was loaded is added up and kept, or the compiler would drop the loads.
    """
    total = 0.0
    for i in range(len(rows)):
        total += np.float64(sizes[rows[i]])
        for at in range(0, LEAF_ROWS, _PER_CACHE_LINE):
            total += priorities[rows[i], at]
            total += np.float64(keys[rows[i], at])
    words[_FETCHED] = np.int64(total > 0.0)


@kernel
def _find_leaves(
    words: NDArray[np.int64],
    node_priority: NDArray[np.float64],
    node_key: NDArray[np.int64],
    node_child: NDArray[np.int64],
    node_count: NDArray[np.int64],
    node_size: NDArray[np.int64],
    priorities: NDArray[np.float64],
    keys: NDArray[np.int64],
    change: int,
) -> NDArray[np.int64]:
    """Return the leaf each row belongs to, and add ``change`` to all counts on the way to it.

    Level by level over the whole batch, so that cache misses overlap.
    """
    batch = len(keys)
    nodes = np.full(batch, words[_ROOT])
    places = np.empty(batch, dtype=np.int64)
    touched = 0.0
    for level in range(words[_HEIGHT]):
        if level > 1:  # the two levels at the top are always close
            for i in range(batch):
                node = nodes[i]
                places[i] = node_size[node]
                for at in range(0, NODE_CHILDREN, _PER_CACHE_LINE):
                    touched += node_priority[node, at]
        for i in range(batch):
            node = nodes[i]
            places[i] = _child_for(node_priority, node_key, node, node_size[node], priorities[i], keys[i])
        for i in range(batch):
            node_count[nodes[i], places[i]] += change
            nodes[i] = node_child[nodes[i], places[i]]
    words[_FETCHED] = np.int64(touched > 0.0)
    return nodes


@kernel
def _take_out(
    leaf_priority: NDArray[np.float64],
    leaf_key: NDArray[np.int64],
    leaf_size: NDArray[np.int64],
    leaves: NDArray[np.int64],
    places: NDArray[np.int64],
    priorities: NDArray[np.float64],
    keys: NDArray[np.int64],
) -> int:
    """Take rows out of their leaves, and return how many left too empty ones behind: their places come first."""
    thin = 0
    for i in range(len(keys)):
        leaf = leaves[i]
        size = leaf_size[leaf]
        at = _outranking(leaf_priority, leaf_key, leaf, 0, size, priorities[i], keys[i])
        _close_gap(leaf_priority, leaf_key, leaf, at, size)
        leaf_size[leaf] = size - 1
        if size <= LEAST_ROWS:
            places[thin] = i
            thin += 1
    return thin


@kernel
def _put_in(
    leaf_priority: NDArray[np.float64],
    leaf_key: NDArray[np.int64],
    leaf_size: NDArray[np.int64],
    leaves: NDArray[np.int64],
    priorities: NDArray[np.float64],
    keys: NDArray[np.int64],
    start: int,
) -> int:
    """Put rows into their leaves, from ``start`` on, until one is full; return where that was, or the batch's end."""
    for i in range(start, len(keys)):
        leaf = leaves[i]
        size = leaf_size[leaf]
        if size == LEAF_ROWS:
            return i
        at = _outranking(leaf_priority, leaf_key, leaf, 0, size, priorities[i], keys[i])
        _open_gap(leaf_priority, leaf_key, leaf, at, size)
        leaf_priority[leaf, at] = priorities[i]
        leaf_key[leaf, at] = keys[i]
        leaf_size[leaf] = size + 1
    return len(keys)


@kernel
def _refill_once(ranking: Ranking, priority: float, key: int) -> bool:
    """Refill what is too empty on the way to where a row belongs; return False if nothing was."""
    refilled = False
    node = ranking.words[_ROOT]
    for height in range(ranking.words[_HEIGHT], 0, -1):
        size = ranking.node_size[node]
        at = _child_for(ranking.node_priority, ranking.node_key, node, size, priority, key)
        child = ranking.node_child[node, at]
        if size > 1 and height == 1 and ranking.leaf_size[child] < LEAST_ROWS:
            _share_rows(ranking, node, max(at - 1, 0))
            refilled = True
        elif size > 1 and height > 1 and ranking.node_size[child] < LEAST_CHILDREN:
            _share_children(ranking, node, max(at - 1, 0))
            refilled = True
        at = _child_for(ranking.node_priority, ranking.node_key, node, ranking.node_size[node], priority, key)
        node = ranking.node_child[node, at]
    _lower_root(ranking)
    return refilled


@kernel
def remove(ranking: Ranking, priorities: NDArray[np.float64], keys: NDArray[np.int64]) -> None:
    """Take out rows that are there, by their priorities and keys."""
    leaves = _find_leaves(
        ranking.words,
        ranking.node_priority,
        ranking.node_key,
        ranking.node_child,
        ranking.node_count,
        ranking.node_size,
        priorities,
        keys,
        -1,
    )
    _fetch(ranking.words, ranking.leaf_priority, ranking.leaf_key, ranking.leaf_size, leaves)
    places = np.empty(len(keys), dtype=np.int64)
    thin = _take_out(ranking.leaf_priority, ranking.leaf_key, ranking.leaf_size, leaves, places, priorities, keys)
    for i in places[:thin]:
        while _refill_once(ranking, priorities[i], keys[i]):
            pass


@kernel
def _split_on_the_way(ranking: Ranking, priority: float, key: int) -> tuple[int, int]:
    """Split every full node on the way to where a row belongs, and the leaf there; return its parent and place."""
    if ranking.node_size[ranking.words[_ROOT]] == NODE_CHILDREN:
        _raise_root(ranking)
    node = ranking.words[_ROOT]
    for _ in range(ranking.words[_HEIGHT] - 1):
        at = _child_for(ranking.node_priority, ranking.node_key, node, ranking.node_size[node], priority, key)
        if ranking.node_size[ranking.node_child[node, at]] == NODE_CHILDREN:
            _split_node(ranking, node, at)
            at = _child_for(ranking.node_priority, ranking.node_key, node, ranking.node_size[node], priority, key)
        node = ranking.node_child[node, at]
    at = _child_for(ranking.node_priority, ranking.node_key, node, ranking.node_size[node], priority, key)
    _split_leaf(ranking, node, at)
    return node, at


@kernel
def _send_right(
    ranking: Ranking,
    node: int,
    at: int,
    leaves: NDArray[np.int64],
    priorities: NDArray[np.float64],
    keys: NDArray[np.int64],
    start: int,
) -> None:
    """After a split, point rows still to be put in, from ``start`` on, to the new leaf if they belong there."""
    left = ranking.node_child[node, at]
    right = ranking.node_child[node, at + 1]
    boundary = ranking.node_priority[node, at + 1]
    boundary_key = ranking.node_key[node, at + 1]
    sent = 0
    for i in range(start, len(keys)):
        belongs = (priorities[i] < boundary) | ((priorities[i] == boundary) & (keys[i] < boundary_key))
        if leaves[i] == left and belongs:
            leaves[i] = right
            sent += 1
    ranking.node_count[node, at] -= sent
    ranking.node_count[node, at + 1] += sent


@kernel
def insert(ranking: Ranking, priorities: NDArray[np.float64], keys: NDArray[np.int64]) -> None:
    """Add rows that are not there."""
    leaves = _find_leaves(
        ranking.words,
        ranking.node_priority,
        ranking.node_key,
        ranking.node_child,
        ranking.node_count,
        ranking.node_size,
        priorities,
        keys,
        1,
    )
    _fetch(ranking.words, ranking.leaf_priority, ranking.leaf_key, ranking.leaf_size, leaves)
    done = 0
    while True:
        done = _put_in(ranking.leaf_priority, ranking.leaf_key, ranking.leaf_size, leaves, priorities, keys, done)
        if done == len(keys):
            return
        node, at = _split_on_the_way(ranking, priorities[done], keys[done])
        _send_right(ranking, node, at, leaves, priorities, keys, done)


@kernel
def keys_of_ranks(ranking: Ranking, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find rows by their ranks, level by level over the whole batch, so that cache misses overlap.

    Args:
        ranking: the tree.
        ranks: int64[batch] in [0, number of rows), 0 being the largest priority.

    Returns:
        int64[batch]: the keys.
    """
    left = ranks.copy()
    nodes = np.full(len(ranks), ranking.words[_ROOT])
    for level in range(ranking.words[_HEIGHT]):
        if level > 1:  # the two levels at the top are always close
            _fetch_counts(ranking.words, ranking.node_count, nodes)
        _step_down(ranking.node_count, ranking.node_child, nodes, left)
    return _keys_at(ranking.leaf_key, nodes, left)


@kernel
def _fetch_counts(words: NDArray[np.int64], node_count: NDArray[np.int64], nodes: NDArray[np.int64]) -> None:
    """Bring the counts of some nodes close, as `_fetch` does with leaves."""
    total = 0
    for i in range(len(nodes)):
        for at in range(0, NODE_CHILDREN, _PER_CACHE_LINE):
            total += node_count[nodes[i], at]
    words[_FETCHED] = total


@kernel
def _step_down(
    node_count: NDArray[np.int64], node_child: NDArray[np.int64], nodes: NDArray[np.int64], left: NDArray[np.int64]
) -> None:
    """Replace nodes by the children under which the rows ``left`` places after their first one lie."""
    for i in range(len(nodes)):
        node = nodes[i]
        rows = left[i]
        at = 0
        while rows >= node_count[node, at]:
            rows -= node_count[node, at]
            at += 1
        left[i] = rows
        nodes[i] = node_child[node, at]


@kernel
def _keys_at(leaf_key: NDArray[np.int64], leaves: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the keys of rows by leaf and place."""
    keys = np.empty(len(leaves), dtype=np.int64)
    for i in range(len(leaves)):
        keys[i] = leaf_key[leaves[i], places[i]]
    return keys


@kernel
def priority_at_end(ranking: Ranking, last: bool) -> float:
    """Return the priority of the last row, or of the first one; there is at least one row."""
    node = ranking.words[_ROOT]
    for _ in range(ranking.words[_HEIGHT]):
        node = ranking.node_child[node, ranking.node_size[node] - 1 if last else 0]
    return float(ranking.leaf_priority[node, ranking.leaf_size[node] - 1 if last else 0])


# ------------------------------------------------------------------------------------------------ building, checking


@kernel
def fill(ranking: Ranking, priorities: NDArray[np.float64], keys: NDArray[np.int64]) -> None:
    """Replace all rows by sorted ones.

    Args:
        ranking: the tree.
        priorities: float64[n] in order of rank.
        keys: int64[n], their keys.
    """
    _empty_pools(ranking)
    rows = len(keys)
    leaves = max(1, -(-rows // int(LEAF_ROWS * BULK_FILL)))
    level = np.empty(leaves, dtype=np.int64)
    counts = np.empty(leaves, dtype=np.int64)
    firsts = np.empty(leaves, dtype=np.int64)
    for i in range(leaves):
        # Evenly, so that none is nearly empty.
        first = i * rows // leaves
        size = (i + 1) * rows // leaves - first
        leaf = _take_leaf(ranking)
        ranking.leaf_priority[leaf, :size] = priorities[first : first + size]
        ranking.leaf_key[leaf, :size] = keys[first : first + size]
        ranking.leaf_size[leaf] = size
        level[i], counts[i], firsts[i] = leaf, size, first
    height = 0
    width = leaves
    while height == 0 or width > 1:
        nodes = -(-width // int(NODE_CHILDREN * BULK_FILL))
        for i in range(nodes):
            start = i * width // nodes
            stop = (i + 1) * width // nodes
            node = _take_node(ranking)
            total = 0
            for j in range(start, stop):
                first = firsts[j]
                priority = priorities[first] if rows else 0.0
                key = keys[first] if rows else 0
                _insert_child(ranking, node, j - start, priority, key, level[j], counts[j])
                total += counts[j]
            level[i], counts[i], firsts[i] = node, total, firsts[start]
        width = nodes
        height += 1
    ranking.words[_ROOT] = level[0]
    ranking.words[_HEIGHT] = height


def rows_in_order(ranking: Ranking) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return priorities and keys of all rows in order of rank, checking the whole tree on the way.

    Raises:
        AssertionError: if the tree is not as it should be.
    """
    leaves: list[int] = []
    nodes: list[int] = []
    _collect(ranking, int(ranking.words[_ROOT]), int(ranking.words[_HEIGHT]), leaves, nodes)
    _check_pool(leaves, ranking.free_leaves[: ranking.words[_FREE_LEAVES]], len(ranking.free_leaves))
    _check_pool(nodes, ranking.free_nodes[: ranking.words[_FREE_NODES]], len(ranking.free_nodes))
    sizes = [int(ranking.leaf_size[leaf]) for leaf in leaves]
    priorities = np.concatenate([ranking.leaf_priority[leaf, :size] for leaf, size in zip(leaves, sizes, strict=True)])
    keys = np.concatenate([ranking.leaf_key[leaf, :size] for leaf, size in zip(leaves, sizes, strict=True)])
    return priorities, keys


def _collect(ranking: Ranking, node: int, height: int, leaves: list[int], nodes: list[int]) -> int:
    """Append all leaves and nodes under a node in order, check each, and return the number of rows."""
    nodes.append(node)
    size = int(ranking.node_size[node])
    is_root = node == ranking.words[_ROOT]
    least = (1 if height == 1 else 2) if is_root else LEAST_CHILDREN
    require(least <= size <= NODE_CHILDREN, "a node is neither too empty nor too full")
    total = 0
    for at in range(size):
        child = int(ranking.node_child[node, at])
        if height > 1:
            rows = _collect(ranking, child, height - 1, leaves, nodes)
        else:
            leaves.append(child)
            rows = int(ranking.leaf_size[child])
            least = 0 if is_root and size == 1 else LEAST_ROWS
            require(least <= rows <= LEAF_ROWS, "a leaf is neither too empty nor too full")
        require(rows == ranking.node_count[node, at], "a node counts the rows under each child")
        if at > 0:
            _check_boundary(ranking, node, at, height)
        total += rows
    return total


def _check_boundary(ranking: Ranking, node: int, at: int, height: int) -> None:
    """Check that a child's boundary is between the row before it and its first one."""
    before = _end_row(ranking, int(ranking.node_child[node, at - 1]), height - 1, last=True)
    first = _end_row(ranking, int(ranking.node_child[node, at]), height - 1, last=False)
    boundary = (float(ranking.node_priority[node, at]), int(ranking.node_key[node, at]))
    require(before > boundary >= first, "a boundary is outranked by what is before it and by nothing after it")


def _end_row(ranking: Ranking, child: int, height: int, last: bool) -> tuple[float, int]:
    """Return the first or last row under a leaf (height 0) or node."""
    for _ in range(height):
        child = int(ranking.node_child[child, ranking.node_size[child] - 1 if last else 0])
    at = ranking.leaf_size[child] - 1 if last else 0
    return float(ranking.leaf_priority[child, at]), int(ranking.leaf_key[child, at])


def _check_pool(used: list[int], free: NDArray[np.int64], length: int) -> None:
    """Check that each leaf or node is either used once or free once."""
    require(sorted([*used, *free.tolist()]) == list(range(length)), "each leaf and node is either used or free")
