"""Rows in the order of their ranks: a counted B-tree in plain arrays.

A row outranks another if its priority is larger or, of equal priorities, if it is the newer one (the larger key).
Rows lie in this order in small sorted leaves. Over them stand nodes, each a sorted list of children with the number
of rows under each, up to one root. To find a row by its rank is to subtract counts on the way down; to find its
place is to compare it with the first row of each child.

* Leaves and nodes are rows of two-dimensional arrays, taken from a pool and given back to it when they empty, so
  memory does not grow however long a ring is written to.
* A batch of rows goes down level by level, counting itself on the way. A leaf too full for its next row is split
  in two, after every full node above it. Leaves left too empty are refilled from a neighbour, or merged with it,
  when the batch is done, and so are nodes. Every leaf and node but those at the root stays `LEAST_FILL` full.
* What a node keeps of a child is a boundary: the child's rows do not outrank it, and all rows of the children
  before it do. The row it came from may be gone. A node's first child has the boundary of the node,
  and the first of all children of a height has `BEFORE_ALL`.
* The children of a node are eight groups of eight. Of each group the node keeps the first boundary and the number of
  rows, so that the way through a node leads over one cache line of either kind, and not over all eight.
* Of a row's key a leaf keeps the low half. Live keys are near each other, so it tells which of two is newer, also when
  it has begun anew between them, and which key it is, from the newest one.
"""

from replay_server.backends.ranking.building import fill, make_ranking
from replay_server.backends.ranking.checking import rows_in_order
from replay_server.backends.ranking.drawing import keys_of_ranks, priority_at_end
from replay_server.backends.ranking.structure import MOST_MOVED, MOST_SLOTS, Ranking, allocate, nbytes
from replay_server.backends.ranking.writing import move

__all__ = [
    "MOST_MOVED",
    "MOST_SLOTS",
    "Ranking",
    "allocate",
    "fill",
    "keys_of_ranks",
    "make_ranking",
    "move",
    "nbytes",
    "priority_at_end",
    "rows_in_order",
]
