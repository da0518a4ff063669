"""Taking rows out of the tree, and putting rows in: a batch at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.compile import kernel, part_of_kernel
from replay_server.backends.lines import LINE
from replay_server.backends.prefetch import prefetch, touch
from replay_server.backends.ranking.balance import refill_once, split_on_the_way
from replay_server.backends.ranking.places import (
    above_in_leaf,
    above_in_node,
    among_equal_boundaries,
    among_equal_rows,
    group_above,
)
from replay_server.backends.ranking.structure import (
    GROUP,
    GROUP_COUNTS,
    HALVES,
    HEIGHT,
    KEYS,
    LEAF_ROWS,
    LEAF_WORDS,
    LEAST_ROWS,
    NEWEST,
    NO_PRIORITY,
    NODE_WORDS,
    ROOT,
    ROW_KEYS,
    Ranking,
    add_rows,
    boundary_at,
    child_at,
    count_at,
    newer_by,
)


@kernel
def _find_leaves(
    ranking: Ranking, priorities: NDArray[np.float64], keys: NDArray[np.int64], change: int
) -> NDArray[np.int64]:
    """Return the leaf each row belongs to, and add ``change`` to all counts on the way to it.

    Level by level over the whole batch: while one row is compared, what the next ones need is on its way. Of each
    node first what it keeps of its groups, which is prefetched; then one group, which is touched (see `prefetch`).
    """
    node_floats, node_ints, node_keys = ranking.node_floats, ranking.node_ints, ranking.node_keys
    node_size = ranking.node_size
    batch = len(keys)
    nodes = np.full(batch, ranking.words[ROOT])
    groups = np.empty(batch, dtype=np.int64)
    height = ranking.words[HEIGHT]
    for level in range(height):
        for i in range(batch):
            group = group_above(node_floats, nodes[i], priorities[i])
            groups[i] = group
        if level > 0:
            for i in range(batch):
                touch(node_floats, nodes[i] * NODE_WORDS + boundary_at(groups[i] * GROUP))
                touch(node_ints, nodes[i] * NODE_WORDS * HALVES + count_at(groups[i] * GROUP))
        for i in range(batch):
            node = nodes[i]
            size = node_size[node]
            at = above_in_node(node_floats, node, groups[i], priorities[i])
            if (
                at < size
                and node_floats[node, boundary_at(at)] == priorities[i]
                and node_keys[node, KEYS + at] >= keys[i]
            ):
                at = among_equal_boundaries(node_floats, node_keys, node, at, size, priorities[i], keys[i])
            at = max(at - 1, 0)
            node_ints[node, count_at(at)] += change
            node_ints[node, GROUP_COUNTS + at // GROUP] += change
            child = int(node_ints[node, child_at(at)])
            nodes[i] = child
            if level < height - 1:
                prefetch(node_floats, child * NODE_WORDS)
                prefetch(node_ints, child * NODE_WORDS * HALVES + GROUP_COUNTS)
                prefetch(node_size, child)
    _touch_leaves(ranking.leaf_floats, ranking.leaf_size, nodes)
    return nodes


@part_of_kernel
def _touch_leaves(leaf_floats: NDArray[np.float64], leaf_size: NDArray[np.int8], leaves: NDArray[np.int64]) -> None:
    """Bring all cache lines of some leaves close before they are worked on one after the other."""
    for leaf in leaves:
        touch(leaf_size, leaf)
        for word in range(leaf * LEAF_WORDS, (leaf + 1) * LEAF_WORDS, LINE):
            touch(leaf_floats, word)


@kernel
def _take_out(
    ranking: Ranking,
    leaves: NDArray[np.int64],
    places: NDArray[np.int64],
    priorities: NDArray[np.float64],
    keys: NDArray[np.int64],
) -> int:
    """Take rows out of their leaves, and return how many left too empty ones behind: their places come first."""
    leaf_floats, leaf_ints, leaf_size = ranking.leaf_floats, ranking.leaf_ints, ranking.leaf_size
    thin = 0
    for i in range(len(keys)):
        leaf = leaves[i]
        last = leaf_size[leaf] - 1
        place = above_in_leaf(leaf_floats, leaf, priorities[i])
        if newer_by(leaf_ints[leaf, ROW_KEYS + place], keys[i]) != 0:
            place = among_equal_rows(leaf_floats, leaf_ints, leaf, place, last, priorities[i], keys[i])
        for at in range(place, last):
            leaf_floats[leaf, at] = leaf_floats[leaf, at + 1]
            leaf_ints[leaf, ROW_KEYS + at] = leaf_ints[leaf, ROW_KEYS + at + 1]
        leaf_floats[leaf, last] = NO_PRIORITY
        leaf_size[leaf] = last
        if last < LEAST_ROWS:
            places[thin] = i
            thin += 1
    return thin


@kernel
def _put_in(
    ranking: Ranking,
    leaves: NDArray[np.int64],
    priorities: NDArray[np.float64],
    keys: NDArray[np.int64],
    start: int,
) -> int:
    """Put rows into their leaves, from ``start`` on, until one is full; return where that was, or the batch's end."""
    leaf_floats, leaf_ints, leaf_size = ranking.leaf_floats, ranking.leaf_ints, ranking.leaf_size
    for i in range(start, len(keys)):
        leaf = leaves[i]
        size = leaf_size[leaf]
        if size == LEAF_ROWS:
            return i
        place = above_in_leaf(leaf_floats, leaf, priorities[i])
        if place < size and leaf_floats[leaf, place] == priorities[i]:
            place = among_equal_rows(leaf_floats, leaf_ints, leaf, place, size, priorities[i], keys[i])
        for at in range(size, place, -1):
            leaf_floats[leaf, at] = leaf_floats[leaf, at - 1]
            leaf_ints[leaf, ROW_KEYS + at] = leaf_ints[leaf, ROW_KEYS + at - 1]
        leaf_floats[leaf, place] = priorities[i]
        leaf_ints[leaf, ROW_KEYS + place] = np.int32(keys[i])
        leaf_size[leaf] = size + 1
    return len(keys)


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
    left = ranking.node_ints[node, child_at(at)]
    right = ranking.node_ints[node, child_at(at + 1)]
    boundary = ranking.node_floats[node, boundary_at(at + 1)]
    boundary_key = ranking.node_keys[node, KEYS + at + 1]
    sent = 0
    for i in range(start, len(keys)):
        belongs = (priorities[i] < boundary) | ((priorities[i] == boundary) & (keys[i] < boundary_key))
        if leaves[i] == left and belongs:
            leaves[i] = right
            sent += 1
    add_rows(ranking, node, at, -sent)
    add_rows(ranking, node, at + 1, sent)


@kernel
def move(
    ranking: Ranking,
    old_priorities: NDArray[np.float64],
    old_keys: NDArray[np.int64],
    new_priorities: NDArray[np.float64],
    new_keys: NDArray[np.int64],
) -> None:
    """Take rows out that are there, and put rows in that are not; at most `MOST_MOVED` each.

    All leaves are looked for before the first is changed, so that they come from memory while others are looked for.

    Args:
        ranking: the tree.
        old_priorities: float64[n] of the rows that go. All keys, of these and of all other rows, lie within
            `MOST_SLOTS` of each other.
        old_keys: int64[n], theirs.
        new_priorities: float64[m] of the rows that come; of rows that only change, the same keys may be in both.
        new_keys: int64[m], theirs.
    """
    for key in new_keys:
        ranking.words[NEWEST] = max(ranking.words[NEWEST], key)
    old_leaves = _find_leaves(ranking, old_priorities, old_keys, -1)
    new_leaves = _find_leaves(ranking, new_priorities, new_keys, 1)
    places = np.empty(len(old_keys), dtype=np.int64)
    thin = _take_out(ranking, old_leaves, places, old_priorities, old_keys)
    done = _put_in(ranking, new_leaves, new_priorities, new_keys, 0)
    while done < len(new_keys):
        node, at = split_on_the_way(ranking, new_priorities[done], new_keys[done])
        _send_right(ranking, node, at, new_leaves, new_priorities, new_keys, done)
        done = _put_in(ranking, new_leaves, new_priorities, new_keys, done)
    for i in places[:thin]:
        while refill_once(ranking, old_priorities[i], old_keys[i]):
            pass
