"""Checking every invariant of the tree: slow, for tests and for `RankIndex.check`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.check import require
from replay_server.backends.ranking.structure import (
    BEFORE_ALL,
    FREE_LEAVES,
    FREE_NODES,
    GROUP,
    GROUP_COUNTS,
    GROUPS,
    HEIGHT,
    KEYS,
    LEAF_ROWS,
    LEAST_CHILDREN,
    LEAST_ROWS,
    NEWEST,
    NO_PRIORITY,
    NODE_CHILDREN,
    ROOT,
    ROW_KEYS,
    Ranking,
    boundary_at,
    child_at,
    count_at,
    row_key,
)


def rows_in_order(ranking: Ranking) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return priorities and keys of all rows in order of rank, checking the whole tree on the way.

    Raises:
        AssertionError: if the tree is not as it should be.
    """
    leaves: list[int] = []
    nodes: list[int] = []
    _collect(ranking, int(ranking.words[ROOT]), int(ranking.words[HEIGHT]), leaves, nodes)
    _check_pool(leaves, ranking.free_leaves[: ranking.words[FREE_LEAVES]], len(ranking.free_leaves))
    _check_pool(nodes, ranking.free_nodes[: ranking.words[FREE_NODES]], len(ranking.free_nodes))
    sizes = [int(ranking.leaf_size[leaf]) for leaf in leaves]
    priorities = np.concatenate([ranking.leaf_floats[leaf, :size] for leaf, size in zip(leaves, sizes, strict=True)])
    low_halves = np.concatenate(
        [ranking.leaf_ints[leaf, ROW_KEYS : ROW_KEYS + size] for leaf, size in zip(leaves, sizes, strict=True)]
    )
    newest = ranking.words[NEWEST]
    return priorities, newest + (low_halves - newest).astype(np.int32)


def _collect(ranking: Ranking, node: int, height: int, leaves: list[int], nodes: list[int]) -> int:
    """Append all leaves and nodes under a node in order, check each, and return the number of rows."""
    nodes.append(node)
    size = int(ranking.node_size[node])
    is_root = node == ranking.words[ROOT]
    least = (1 if height == 1 else 2) if is_root else LEAST_CHILDREN
    require(least <= size <= NODE_CHILDREN, "a node is neither too empty nor too full")
    require(
        not is_root or ranking.node_floats[node, boundary_at(0)] == BEFORE_ALL,
        "the first boundary of all is before all rows",
    )
    _check_groups(ranking, node, size)
    total = 0
    for at in range(size):
        child = int(ranking.node_ints[node, child_at(at)])
        if height > 1:
            rows = _collect(ranking, child, height - 1, leaves, nodes)
        else:
            leaves.append(child)
            rows = int(ranking.leaf_size[child])
            least = 0 if is_root and size == 1 else LEAST_ROWS
            require(least <= rows <= LEAF_ROWS, "a leaf is neither too empty nor too full")
            unused = ranking.leaf_floats[child, rows:LEAF_ROWS]
            require(bool((unused == NO_PRIORITY).all()), "a leaf's unused places outrank nothing")
        require(rows == ranking.node_ints[node, count_at(at)], "a node counts the rows under each child")
        if at > 0:
            _check_boundary(ranking, node, at, height)
        if height > 1:
            _check_first_boundary(ranking, node, at)
        total += rows
    return total


def _check_groups(ranking: Ranking, node: int, size: int) -> None:
    """Check what a node keeps of its groups, and its unused places."""
    priorities = np.asarray([ranking.node_floats[node, boundary_at(at)] for at in range(NODE_CHILDREN)])
    counts = np.asarray([ranking.node_ints[node, count_at(at)] for at in range(NODE_CHILDREN)])
    require(bool((priorities[size:] == NO_PRIORITY).all()), "a node's unused places outrank nothing")
    require(not counts[size:].any(), "there are no rows under a node's unused places")
    firsts = ranking.node_floats[node, :GROUPS]
    require(np.array_equal(firsts, priorities[::GROUP]), "a group begins with the boundary of its first child")
    rows = ranking.node_ints[node, GROUP_COUNTS : GROUP_COUNTS + GROUPS]
    require(np.array_equal(rows, counts.reshape(-1, GROUP).sum(axis=1)), "a group counts the rows under its children")


def _check_boundary(ranking: Ranking, node: int, at: int, height: int) -> None:
    """Check that a child's boundary is between the row before it and its first one."""
    before = _end_row(ranking, int(ranking.node_ints[node, child_at(at - 1)]), height - 1, last=True)
    first = _end_row(ranking, int(ranking.node_ints[node, child_at(at)]), height - 1, last=False)
    boundary = (float(ranking.node_floats[node, boundary_at(at)]), int(ranking.node_keys[node, KEYS + at]))
    require(before > boundary >= first, "a boundary is outranked by what is before it and by nothing after it")


def _check_first_boundary(ranking: Ranking, node: int, at: int) -> None:
    """Check that a node that is a child of another begins with its own boundary."""
    child = int(ranking.node_ints[node, child_at(at)])
    require(
        ranking.node_floats[child, boundary_at(0)] == ranking.node_floats[node, boundary_at(at)]
        and (
            ranking.node_floats[node, boundary_at(at)] == BEFORE_ALL
            or ranking.node_keys[child, KEYS] == ranking.node_keys[node, KEYS + at]
        ),
        "the first child of a node has the node's boundary",
    )


def _end_row(ranking: Ranking, child: int, height: int, last: bool) -> tuple[float, int]:
    """Return the first or last row under a leaf (height 0) or node."""
    for _ in range(height):
        child = int(ranking.node_ints[child, child_at(int(ranking.node_size[child]) - 1 if last else 0)])
    at = int(ranking.leaf_size[child]) - 1 if last else 0
    return float(ranking.leaf_floats[child, at]), row_key(ranking, child, at)


def _check_pool(used: list[int], free: NDArray[np.int32], length: int) -> None:
    """Check that each leaf or node is either used once or free once."""
    require(sorted([*used, *free.tolist()]) == list(range(length)), "each leaf and node is either used or free")
