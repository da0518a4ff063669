"""Finding rows by their ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.compile import kernel
from replay_server.backends.lines import step_over
from replay_server.backends.prefetch import prefetch, touch
from replay_server.backends.ranking.structure import (
    GROUP,
    GROUP_COUNTS,
    HALVES,
    HEIGHT,
    LEAF_WORDS,
    NEWEST,
    NODE_WORDS,
    ROOT,
    ROW_KEYS,
    Ranking,
    child_at,
    count_at,
    newer_by,
)


@kernel
def keys_of_ranks(ranking: Ranking, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find rows by their ranks, level by level over the whole batch: as `writing` finds leaves.

    Args:
        ranking: the tree.
        ranks: int64[batch] in [0, number of rows), 0 being the largest priority.

    Returns:
        int64[batch]: the keys.
    """
    node_ints, leaf_ints, newest = ranking.node_ints, ranking.leaf_ints, ranking.words[NEWEST]
    batch = len(ranks)
    left = ranks.copy()
    nodes = np.full(batch, ranking.words[ROOT])
    groups = np.empty(batch, dtype=np.int64)  # the first child of each
    height = ranking.words[HEIGHT]
    for level in range(height):
        for i in range(batch):
            group, passed = step_over(node_ints, nodes[i] * NODE_WORDS * HALVES + GROUP_COUNTS, left[i])
            left[i] -= passed
            groups[i] = group * GROUP
        if level > 0:
            for i in range(batch):
                touch(node_ints, nodes[i] * NODE_WORDS * HALVES + count_at(groups[i]))
        for i in range(batch):
            at, passed = step_over(node_ints, nodes[i] * NODE_WORDS * HALVES + count_at(groups[i]), left[i])
            left[i] -= passed
            child = int(node_ints[nodes[i], child_at(groups[i] + at)])
            nodes[i] = child
            if level < height - 1:
                prefetch(node_ints, child * NODE_WORDS * HALVES + GROUP_COUNTS)
    for i in range(batch):
        touch(leaf_ints, nodes[i] * LEAF_WORDS * HALVES + ROW_KEYS + left[i])
    for i in range(batch):
        nodes[i] = newest + newer_by(leaf_ints[nodes[i], ROW_KEYS + left[i]], newest)
    return nodes


@kernel
def priority_at_end(ranking: Ranking, last: bool) -> float:
    """Return the priority of the last row, or of the first one; there is at least one row."""
    node = ranking.words[ROOT]
    for _ in range(ranking.words[HEIGHT]):
        node = ranking.node_ints[node, child_at(ranking.node_size[node] - 1 if last else 0)]
    return float(ranking.leaf_floats[node, ranking.leaf_size[node] - 1 if last else 0])
