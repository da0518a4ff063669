"""Rows in order of rank: a counted B+ tree in plain arrays.

A row outranks another if its priority is larger. Of two rows with equal priority, the newer one, whose key is larger,
outranks the other. Leaves store the rows in this order. Inner nodes store their children in the same order. Each child
has a boundary, and a count of the rows in it and in all children before it. To find a row by rank, subtract counts on
the way down. To find the place of a row, compare it with boundaries.

* Leaves and inner nodes have the same layout: a sorted list of up to `WIDTH` entries, each with a priority and a key.
  In a leaf, an entry is a row; in an inner node, it is the boundary of a child.
* All rows in earlier children outrank a child's boundary; no row in the child itself does. A boundary is copied from a
  row, which may have been removed since. The first boundary in an inner node is the node's own boundary, or
  `BEFORE_ALL` at the left edge.
* A batch descends the tree level by level, so that the cache misses of its rows overlap. Then rows are removed from
  some leaves and inserted into others. If this leaves a leaf too full or too empty, the rows concerned descend again,
  one at a time, and nodes on their paths are split, merged or rebalanced.
"""

from replay_server.backends.structures.rank_tree.nodes import (
    MOST_RANKED,
    RankTree,
    allocate,
    fill,
    keys_of_ranks,
    largest_priority,
    make_tree,
    smallest_priority,
)
from replay_server.backends.structures.rank_tree.writing import MOST_MOVED, move

__all__ = [
    "MOST_MOVED",
    "MOST_RANKED",
    "RankTree",
    "allocate",
    "fill",
    "keys_of_ranks",
    "largest_priority",
    "make_tree",
    "move",
    "smallest_priority",
]
