"""Splitting what is too full for another entry, and refilling what is too empty from a neighbour."""

from __future__ import annotations

from replay_server.backends.compile import kernel
from replay_server.backends.ranking.places import child_for
from replay_server.backends.ranking.structure import (
    BEFORE_ALL,
    HEIGHT,
    KEYS,
    LEAST_CHILDREN,
    LEAST_ROWS,
    MERGED_CHILDREN,
    MERGED_ROWS,
    NODE_CHILDREN,
    ROOT,
    ROW_KEYS,
    Ranking,
    boundary_at,
    child_at,
    count_at,
    give_back_leaf,
    give_back_node,
    resize_leaf,
    resize_node,
    row_key,
    take_leaf,
    take_node,
)

# ------------------------------------------------------------------------------------------- moving runs of entries


@kernel
def _move_rows(ranking: Ranking, source: int, first: int, count: int, target: int, at: int) -> None:
    """Copy ``count`` rows of one leaf over those of a leaf, which may be the same, from ``at`` on."""
    if source == target and at > first:
        for i in range(count - 1, -1, -1):
            ranking.leaf_floats[target, at + i] = ranking.leaf_floats[source, first + i]
            ranking.leaf_ints[target, ROW_KEYS + at + i] = ranking.leaf_ints[source, ROW_KEYS + first + i]
    else:
        for i in range(count):
            ranking.leaf_floats[target, at + i] = ranking.leaf_floats[source, first + i]
            ranking.leaf_ints[target, ROW_KEYS + at + i] = ranking.leaf_ints[source, ROW_KEYS + first + i]


@kernel
def _move_child(ranking: Ranking, source: int, first: int, target: int, at: int) -> None:
    """Copy one entry of a node over one of a node."""
    ranking.node_floats[target, boundary_at(at)] = ranking.node_floats[source, boundary_at(first)]
    ranking.node_keys[target, KEYS + at] = ranking.node_keys[source, KEYS + first]
    ranking.node_ints[target, child_at(at)] = ranking.node_ints[source, child_at(first)]
    ranking.node_ints[target, count_at(at)] = ranking.node_ints[source, count_at(first)]


@kernel
def _move_children(ranking: Ranking, source: int, first: int, count: int, target: int, at: int) -> int:
    """Copy ``count`` entries of one node over those of a node, from ``at`` on; return the rows under them."""
    rows = 0
    for step in range(count):
        i = count - 1 - step if source == target and at > first else step
        rows += ranking.node_ints[source, count_at(first + i)]
        _move_child(ranking, source, first + i, target, at + i)
    return rows


@kernel
def set_child(ranking: Ranking, node: int, at: int, priority: float, key: int, child: int, count: int) -> None:
    """Overwrite one entry of a node; `resize_node` is the caller's to call."""
    ranking.node_floats[node, boundary_at(at)] = priority
    ranking.node_keys[node, KEYS + at] = key
    ranking.node_ints[node, child_at(at)] = child
    ranking.node_ints[node, count_at(at)] = count


@kernel
def _insert_child(ranking: Ranking, node: int, at: int, priority: float, key: int, child: int, count: int) -> None:
    """Add a child to a node that has room for it."""
    size = ranking.node_size[node]
    _move_children(ranking, node, at, size - at, node, at + 1)
    set_child(ranking, node, at, priority, key, child, count)
    resize_node(ranking, node, size + 1)


@kernel
def _remove_child(ranking: Ranking, node: int, at: int) -> None:
    """Take a child out of a node."""
    size = ranking.node_size[node]
    _move_children(ranking, node, at + 1, size - at - 1, node, at)
    resize_node(ranking, node, size - 1)


# -------------------------------------------------------------------------------------------------------- splitting


@kernel
def _split_leaf(ranking: Ranking, parent: int, at: int) -> None:
    """Move the second half of a leaf to a new one beside it."""
    left = ranking.node_ints[parent, child_at(at)]
    kept = ranking.leaf_size[left] // 2
    moved = ranking.leaf_size[left] - kept
    right = take_leaf(ranking)
    _move_rows(ranking, left, kept, moved, right, 0)
    resize_leaf(ranking, left, kept)
    resize_leaf(ranking, right, moved)
    ranking.node_ints[parent, count_at(at)] -= moved
    _insert_child(ranking, parent, at + 1, ranking.leaf_floats[right, 0], row_key(ranking, right, 0), right, moved)


@kernel
def _split_node(ranking: Ranking, parent: int, at: int) -> None:
    """Move the second half of a node's children to a new node beside it."""
    left = ranking.node_ints[parent, child_at(at)]
    kept = ranking.node_size[left] // 2
    moved = ranking.node_size[left] - kept
    right = take_node(ranking)
    rows = _move_children(ranking, left, kept, moved, right, 0)
    resize_node(ranking, left, kept)
    resize_node(ranking, right, moved)
    ranking.node_ints[parent, count_at(at)] -= rows
    _insert_child(
        ranking, parent, at + 1, ranking.node_floats[right, boundary_at(0)], ranking.node_keys[right, KEYS], right, rows
    )


@kernel
def _raise_root(ranking: Ranking) -> None:
    """Put a new root over the old one, and split that."""
    old = ranking.words[ROOT]
    rows = 0
    for i in range(ranking.node_size[old]):
        rows += ranking.node_ints[old, count_at(i)]
    root = take_node(ranking)
    _insert_child(ranking, root, 0, BEFORE_ALL, 0, old, rows)
    ranking.words[ROOT] = root
    ranking.words[HEIGHT] += 1
    _split_node(ranking, root, 0)


@kernel
def split_on_the_way(ranking: Ranking, priority: float, key: int) -> tuple[int, int]:
    """Split every full node on the way to where a row belongs, and the leaf there; return its parent and place."""
    if ranking.node_size[ranking.words[ROOT]] == NODE_CHILDREN:
        _raise_root(ranking)
    node = ranking.words[ROOT]
    for _ in range(ranking.words[HEIGHT] - 1):
        at = child_for(ranking, node, priority, key)
        if ranking.node_size[ranking.node_ints[node, child_at(at)]] == NODE_CHILDREN:
            _split_node(ranking, node, at)
            at = child_for(ranking, node, priority, key)
        node = ranking.node_ints[node, child_at(at)]
    at = child_for(ranking, node, priority, key)
    _split_leaf(ranking, node, at)
    return node, at


# -------------------------------------------------------------------------------------------------------- refilling


@kernel
def _share_rows(ranking: Ranking, parent: int, at: int) -> None:
    """Share the rows of the leaves ``at`` and ``at + 1`` evenly, or merge them if one leaf holds them with ease."""
    left = ranking.node_ints[parent, child_at(at)]
    right = ranking.node_ints[parent, child_at(at + 1)]
    left_size = ranking.leaf_size[left]
    right_size = ranking.leaf_size[right]
    together = left_size + right_size
    if together <= MERGED_ROWS:
        _move_rows(ranking, right, 0, right_size, left, left_size)
        resize_leaf(ranking, left, together)
        ranking.node_ints[parent, count_at(at)] = together
        _remove_child(ranking, parent, at + 1)
        give_back_leaf(ranking, right)
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
    resize_leaf(ranking, left, kept)
    resize_leaf(ranking, right, together - kept)
    ranking.node_ints[parent, count_at(at)] = kept
    ranking.node_ints[parent, count_at(at + 1)] = together - kept
    ranking.node_floats[parent, boundary_at(at + 1)] = ranking.leaf_floats[right, 0]
    ranking.node_keys[parent, KEYS + at + 1] = row_key(ranking, right, 0)
    resize_node(ranking, parent, ranking.node_size[parent])


@kernel
def _share_children(ranking: Ranking, parent: int, at: int) -> None:
    """Do the same with the children of the nodes ``at`` and ``at + 1``."""
    left = ranking.node_ints[parent, child_at(at)]
    right = ranking.node_ints[parent, child_at(at + 1)]
    left_size = ranking.node_size[left]
    right_size = ranking.node_size[right]
    together = left_size + right_size
    if together <= MERGED_CHILDREN:
        rows = _move_children(ranking, right, 0, right_size, left, left_size)
        resize_node(ranking, left, together)
        ranking.node_ints[parent, count_at(at)] += rows
        _remove_child(ranking, parent, at + 1)
        give_back_node(ranking, right)
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
    resize_node(ranking, left, kept)
    resize_node(ranking, right, together - kept)
    ranking.node_ints[parent, count_at(at)] += rows
    ranking.node_ints[parent, count_at(at + 1)] -= rows
    ranking.node_floats[parent, boundary_at(at + 1)] = ranking.node_floats[right, boundary_at(0)]
    ranking.node_keys[parent, KEYS + at + 1] = ranking.node_keys[right, KEYS]
    resize_node(ranking, parent, ranking.node_size[parent])


@kernel
def _lower_root(ranking: Ranking) -> None:
    """Drop a root that has a single child, unless that is a leaf."""
    while ranking.words[HEIGHT] > 1 and ranking.node_size[ranking.words[ROOT]] == 1:
        root = ranking.words[ROOT]
        ranking.words[ROOT] = ranking.node_ints[root, child_at(0)]
        ranking.words[HEIGHT] -= 1
        give_back_node(ranking, root)


@kernel
def refill_once(ranking: Ranking, priority: float, key: int) -> bool:
    """Refill what is too empty on the way to where a row belongs; return False if nothing was."""
    refilled = False
    node = ranking.words[ROOT]
    for height in range(ranking.words[HEIGHT], 0, -1):
        size = ranking.node_size[node]
        at = child_for(ranking, node, priority, key)
        child = ranking.node_ints[node, child_at(at)]
        if size > 1 and height == 1 and ranking.leaf_size[child] < LEAST_ROWS:
            _share_rows(ranking, node, max(at - 1, 0))
            refilled = True
        elif size > 1 and height > 1 and ranking.node_size[child] < LEAST_CHILDREN:
            _share_children(ranking, node, max(at - 1, 0))
            refilled = True
        node = ranking.node_ints[node, child_at(child_for(ranking, node, priority, key))]
    _lower_root(ranking)
    return refilled
