"""Finding rows by their ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.compile import kernel
from replay_server.backends.lines import step_over
from replay_server.backends.prefetch import prefetch
from replay_server.backends.ranking.structure import GROUP, GROUPS, HEIGHT, LEAF_ROWS, NODE_CHILDREN, ROOT, Ranking


@kernel
def keys_of_ranks(ranking: Ranking, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find rows by their ranks, level by level over the whole batch: see `writing`.

    Args:
        ranking: the tree.
        ranks: int64[batch] in [0, number of rows), 0 being the largest priority.

    Returns:
        int64[batch]: the keys.
    """
    group_count, leaf_key = ranking.group_count, ranking.leaf_key
    node_count, node_child = ranking.node_count, ranking.node_child
    batch = len(ranks)
    left = ranks.copy()
    nodes = np.full(batch, ranking.words[ROOT])
    groups = np.empty(batch, dtype=np.int64)
    height = ranking.words[HEIGHT]
    for level in range(height):
        for i in range(batch):
            group, passed = step_over(group_count, nodes[i] * GROUPS, left[i])
            left[i] -= passed
            groups[i] = group
            if level > 0:
                entries = nodes[i] * NODE_CHILDREN + group * GROUP
                prefetch(node_count, entries)
                prefetch(node_child, entries)
        for i in range(batch):
            first = groups[i] * GROUP
            at, passed = step_over(node_count, nodes[i] * NODE_CHILDREN + first, left[i])
            left[i] -= passed
            child = node_child[nodes[i], first + at]
            nodes[i] = child
            if level < height - 1:
                prefetch(group_count, child * GROUPS)
            else:
                prefetch(leaf_key, child * LEAF_ROWS + left[i])
    for i in range(batch):
        nodes[i] = leaf_key[nodes[i], left[i]]
    return nodes


@kernel
def priority_at_end(ranking: Ranking, last: bool) -> float:
    """Return the priority of the last row, or of the first one; there is at least one row."""
    node = ranking.words[ROOT]
    for _ in range(ranking.words[HEIGHT]):
        node = ranking.node_child[node, ranking.node_size[node] - 1 if last else 0]
    return float(ranking.leaf_priority[node, ranking.leaf_size[node] - 1 if last else 0])
