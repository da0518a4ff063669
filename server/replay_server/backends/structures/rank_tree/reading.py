"""Finds rows by rank."""

from __future__ import annotations

import numpy as np

from replay_server.backends.structures.rank_tree.nodes import HEIGHT, ROOT, WIDTH, RankTree
from replay_server.kernels.compile import Integers, kernel
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
