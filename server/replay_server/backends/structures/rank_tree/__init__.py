"""Rows in order of rank: a counted B+ tree in plain arrays.

A row outranks another if its priority is larger or, if they are equal, if it is newer (its key is larger). Leaves store
the rows in this order. Inner nodes store their children in the same order, each with a boundary and the number of rows
in it and all children before it. To find a row by rank, subtract counts on the way down. To find the place of a row,
compare it with boundaries.

* Leaves and inner nodes have the same layout: a sorted list of up to `WIDTH` entries, each with a priority and a key.
  In a leaf, an entry is a row; in an inner node, it is the boundary of a child.
* All rows in earlier children outrank a boundary; no row in its own child does. A boundary is copied from a row, which
  may have been removed since. The first entry of an inner node repeats the node's own boundary, or is `BEFORE_ALL` at
  the left edge.
* A batch descends the tree level by level, so that the cache misses of its rows overlap. Then rows are removed from
  some leaves and inserted into others. If a leaf becomes too full or too empty, its rows descend again one at a time,
  which splits, merges or rebalances nodes on the path.
"""

from replay_server.backends.structures.rank_tree.building import fill, make_tree
from replay_server.backends.structures.rank_tree.nodes import MOST_ROWS, RankTree, allocate
from replay_server.backends.structures.rank_tree.reading import keys_of_ranks, largest_priority, smallest_priority
from replay_server.backends.structures.rank_tree.writing import MOST_MOVED, move

__all__ = [
    "MOST_MOVED",
    "MOST_ROWS",
    "RankTree",
    "allocate",
    "fill",
    "keys_of_ranks",
    "largest_priority",
    "make_tree",
    "move",
    "smallest_priority",
]
