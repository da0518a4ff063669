"""Finds rows by rank, and ranks by priority."""

from __future__ import annotations

import numpy as np

from replay_server.backends.structures.rank_tree.nodes import HEIGHT, ROOT, WIDTH, RankTree, child_for, place_of
from replay_server.kernels.compile import Floats, Integers, kernel
from replay_server.kernels.prefetch import touch


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


_NEWEST = np.iinfo(np.int64).max
"""A key that outranks all other keys with the same priority."""


@kernel
def count_larger(tree: RankTree, priorities: Floats) -> Integers:
    """Return int64[n]: how many rows have a larger priority than each of these. priorities: float64[n], finite."""
    counts = np.zeros(len(priorities), dtype=np.int64)
    nodes = np.full(len(priorities), tree.state[ROOT])
    for _ in range(tree.state[HEIGHT]):
        for i in range(len(nodes)):
            at = child_for(tree, nodes[i], priorities[i], _NEWEST)
            if at > 0:
                counts[i] += tree.rows_up_to[nodes[i], at - 1]
            nodes[i] = tree.children[nodes[i], at]
    for i in range(len(nodes)):
        counts[i] += place_of(tree, nodes[i], priorities[i], _NEWEST)
    return counts


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
