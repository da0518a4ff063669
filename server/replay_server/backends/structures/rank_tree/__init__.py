"""Rows in order of rank: a counted B+ tree in plain arrays.

A row outranks another if its priority is larger or, between equal priorities, if it is newer (its key is larger).
Leaves hold the rows in this order. Inner nodes hold their children in the same order, each with its boundary and with
the number of rows up to its end. To find a row by rank, subtract counts on the way down; to find the place of a row,
compare it with boundaries.

* Leaves and inner nodes have one layout: a sorted list of up to `WIDTH` entries, each with a priority and a key. In a
  leaf these are a row's. In an inner node they are the boundary of a child.
* A boundary is outranked by every row of the children before it, and by no row of its own child. The row it was taken
  from may be gone. The first entry of an inner node repeats the node's own boundary, at the left edge `BEFORE_ALL`.
* A batch first goes down the tree level by level, so that the cache misses of its rows overlap. Rows then leave and
  enter leaves. Only where a leaf became too full or too empty, one row at a time goes down again and splits, merges
  or evens out nodes on its way.
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
