"""Splits full nodes, and merges or rebalances nodes with too few entries."""

from __future__ import annotations

from replay_server.backends.structures.rank_tree.nodes import (
    BEFORE_ALL,
    HEIGHT,
    LEAST_ENTRIES,
    MERGED_ENTRIES,
    ROOT,
    WIDTH,
    RankTree,
    add_rows,
    child_for,
    copy_entry,
    free_node,
    is_inner,
    resize,
    take_node,
)
from replay_server.kernels.compile import kernel


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
