"""Moves rows between ranks, in batches."""

from __future__ import annotations

import numpy as np

from replay_server.backends.structures.rank_tree.nodes import (
    BEFORE_ALL,
    HEIGHT,
    LEAST_ENTRIES,
    MERGED_ENTRIES,
    ROOT,
    UNUSED,
    WIDTH,
    RankTree,
    add_rows,
    child_for,
    copy_entry,
    free_node,
    is_inner,
    place_of,
    resize,
    take_node,
)
from replay_server.kernels.compile import CACHE_LINE_BYTES, Floats, Integers, kernel, part_of_kernel
from replay_server.kernels.prefetch import prefetch


@kernel
def _divide(tree: RankTree, parent: int, at: int, kept: int) -> None:
    """Redistribute the entries of two neighboring children: the left gets the first ``kept``, the right the rest."""
    left, right = int(tree.children[parent, at]), int(tree.children[parent, at + 1])
    before = int(tree.sizes[left])
    total = before + int(tree.sizes[right])
    for step in range(total):
        # If entries move to the right, start with the last one, so that none is overwritten.
        i = step if kept > before else total - 1 - step
        source, from_place = (left, i) if i < before else (right, i - before)
        target, to_place = (left, i) if i < kept else (right, i - kept)
        copy_entry(tree, source, from_place, target, to_place)
    resize(tree, left, kept)
    resize(tree, right, total - kept)
    tree.priorities[parent, at + 1] = tree.priorities[right, 0]
    tree.keys[parent, at + 1] = tree.keys[right, 0]
    resize(tree, parent, tree.sizes[parent])


@kernel
def _split(tree: RankTree, parent: int, at: int) -> None:
    """Move the second half of a child to a new sibling; the parent has room."""
    child = int(tree.children[parent, at])
    size = int(tree.sizes[parent])
    for i in range(size, at + 1, -1):
        copy_entry(tree, parent, i - 1, parent, i)
    tree.children[parent, at + 1] = take_node(tree, is_inner(tree, child))
    tree.sizes[parent] = size + 1
    _divide(tree, parent, at, int(tree.sizes[child]) // 2)


@kernel
def _refill(tree: RankTree, parent: int, at: int) -> None:
    """Merge a child with a neighbor, or redistribute their entries; the parent has at least two children."""
    size = int(tree.sizes[parent])
    at = min(at, size - 2)
    right = int(tree.children[parent, at + 1])
    total = int(tree.sizes[tree.children[parent, at]] + tree.sizes[right])
    if total > MERGED_ENTRIES:
        _divide(tree, parent, at, total // 2)
        return
    _divide(tree, parent, at, total)
    free_node(tree, right)
    for i in range(at + 1, size - 1):
        copy_entry(tree, parent, i + 1, parent, i)
    resize(tree, parent, size - 1)


@kernel
def _raise_root(tree: RankTree) -> None:
    """Put a new root above a full one."""
    root = take_node(tree, True)
    tree.priorities[root, 0] = BEFORE_ALL
    tree.keys[root, 0] = 0
    tree.children[root, 0] = tree.state[ROOT]
    resize(tree, root, 1)
    tree.state[ROOT] = root
    tree.state[HEIGHT] += 1


@kernel
def repair_way(tree: RankTree, priority: float, key: int, coming: int) -> int:
    """Rebalance the nodes on the path to a row, and return its leaf.

    Refill nodes with too few entries. If the row will be inserted (``coming`` is 1, else 0), make room for it and add
    it to the counts.
    """
    if coming and tree.sizes[tree.state[ROOT]] == WIDTH:
        _raise_root(tree)
    node = int(tree.state[ROOT])
    for _ in range(tree.state[HEIGHT]):
        at = child_for(tree, node, priority, key)
        child_size = tree.sizes[tree.children[node, at]]
        if coming and child_size == WIDTH:
            _split(tree, node, at)
            at = child_for(tree, node, priority, key)
        elif child_size <= LEAST_ENTRIES and tree.sizes[node] > 1:
            _refill(tree, node, at)
            at = child_for(tree, node, priority, key)
        add_rows(tree, node, at, coming)
        node = int(tree.children[node, at])
    while tree.state[HEIGHT] > 0 and tree.sizes[tree.state[ROOT]] == 1:
        root = int(tree.state[ROOT])
        tree.state[ROOT] = tree.children[root, 0]
        tree.state[HEIGHT] -= 1
        free_node(tree, root)
    return node


MOST_MOVED = 512
"""Batch size: enough rows for cache misses to overlap, few enough for their state to stay in the L1 cache."""

_AHEAD = 8
"""Prefetch distance for leaves, in rows."""

_LINE = CACHE_LINE_BYTES // 8
"""8-byte numbers per cache line."""


@part_of_kernel
def _prefetch_leaf(tree: RankTree, leaf: int) -> None:
    """Prefetch all cache lines of a leaf's entries."""
    for at in range(leaf * WIDTH, (leaf + 1) * WIDTH, _LINE):
        prefetch(tree.priorities, at)
        prefetch(tree.keys, at)


@kernel
def _find_leaves(tree: RankTree, priorities: Floats, keys: Integers, change: int) -> Integers:
    """Return the leaf of each row, and add ``change`` to the counts on the path to it."""
    nodes = np.full(len(keys), tree.state[ROOT])
    for _ in range(tree.state[HEIGHT]):
        for i in range(len(keys)):
            at = child_for(tree, nodes[i], priorities[i], keys[i])
            add_rows(tree, nodes[i], at, change)
            nodes[i] = tree.children[nodes[i], at]
    return nodes


@kernel
def _take_out(tree: RankTree, leaves: Integers, priorities: Floats, keys: Integers, emptied: Integers) -> int:
    """Remove rows from their leaves. Store in ``emptied`` the rows whose leaf is now too empty; return their number."""
    count = 0
    for i in range(len(keys)):
        leaf = leaves[i]
        _prefetch_leaf(tree, leaves[min(i + _AHEAD, len(keys) - 1)])
        last = tree.sizes[leaf] - 1
        for at in range(place_of(tree, leaf, priorities[i], keys[i]), last):
            tree.priorities[leaf, at] = tree.priorities[leaf, at + 1]
            tree.keys[leaf, at] = tree.keys[leaf, at + 1]
        tree.priorities[leaf, last] = UNUSED
        tree.sizes[leaf] = last
        if last < LEAST_ENTRIES:
            emptied[count] = i
            count += 1
    return count


@kernel
def _put_in(tree: RankTree, leaves: Integers, priorities: Floats, keys: Integers, left_over: Integers) -> int:
    """Add rows to their leaves. Store in ``left_over`` the rows whose leaf is full; return their number."""
    count = 0
    for i in range(len(keys)):
        leaf = leaves[i]
        _prefetch_leaf(tree, leaves[min(i + _AHEAD, len(keys) - 1)])
        size = tree.sizes[leaf]
        place = place_of(tree, leaf, priorities[i], keys[i])
        if size == WIDTH:
            left_over[count] = i
            count += 1
            continue
        for at in range(size, place, -1):
            tree.priorities[leaf, at] = tree.priorities[leaf, at - 1]
            tree.keys[leaf, at] = tree.keys[leaf, at - 1]
        tree.priorities[leaf, place] = priorities[i]
        tree.keys[leaf, place] = keys[i]
        tree.sizes[leaf] = size + 1
    return count


@kernel
def move(
    tree: RankTree, old_priorities: Floats, old_keys: Integers, new_priorities: Floats, new_keys: Integers
) -> None:
    """Remove existing rows, then add new ones; at most `MOST_MOVED` each.

    A row whose priority changes is in both lists.
    """
    old_leaves = _find_leaves(tree, old_priorities, old_keys, -1)
    new_leaves = _find_leaves(tree, new_priorities, new_keys, 1)
    emptied = np.empty(len(old_keys), dtype=np.int64)
    left_over = np.empty(len(new_keys), dtype=np.int64)
    emptied = emptied[: _take_out(tree, old_leaves, old_priorities, old_keys, emptied)]
    left_over = left_over[: _put_in(tree, new_leaves, new_priorities, new_keys, left_over)]
    _find_leaves(tree, new_priorities[left_over], new_keys[left_over], -1)
    for i in emptied:
        repair_way(tree, old_priorities[i], old_keys[i], 0)
    for i in left_over:
        new_leaves[i] = repair_way(tree, new_priorities[i], new_keys[i], 1)
        row = slice(i, i + 1)
        _put_in(tree, new_leaves[row], new_priorities[row], new_keys[row], left_over)
