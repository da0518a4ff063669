"""Slow checks of every invariant of indices and tables."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from replay_server.backends import LiveRows, PriorityIndex, RankIndex
from replay_server.backends.structures.rank_tree.nodes import (
    BEFORE_ALL,
    FREE_INNER,
    FREE_LEAF,
    HEIGHT,
    LEAST_ENTRIES,
    ROOT,
    UNUSED,
    WIDTH,
    RankTree,
)
from replay_server.table.table import Table

Row = tuple[float, int]


def require(holds: bool, invariant: str) -> None:
    """Raise AssertionError with ``invariant`` as its message unless it holds."""
    if not holds:
        raise AssertionError(f"broken invariant: {invariant}")


def check_table(table: Table) -> None:
    """Check every invariant of a table without running inserts.

    Raises:
        AssertionError: an invariant is violated.
    """
    assert 0 <= table.size <= table.config.most_live, f"size {table.size} of at most {table.config.most_live}"
    assert table.write_horizon == table.inserted, "rows are being written"
    assert sum(rows for _, _, rows in table.figures.now().times_sampled) == table.size, "times sampled miss rows"
    check_index(table._index)


def check_index(index: PriorityIndex) -> None:
    """Compare the full state of an index with the priority array.

    Raises:
        AssertionError: something differs; the message names the invariant.
    """
    kept: Any = index
    if isinstance(index, RankIndex):
        _check_ranks(kept)
        return
    fresh: Any = type(index)(kept.parameters, kept._priorities)
    fresh._recompute(LiveRows(0, 0, len(kept._priorities)))
    for name, invariant in (
        ("_size", "the size is the number of rows that are not dead"),
        ("_tree", "masses and their sums follow from the priorities"),
        ("_largest", "largest priorities are those of their blocks"),
        ("_smallest", "smallest priorities are those of their blocks"),
        ("_least_mass", "smallest masses are those of their blocks"),
    ):
        if hasattr(kept, name):
            require(np.array_equal(getattr(fresh, name), getattr(kept, name)), invariant)


def _check_ranks(index: Any) -> None:
    priorities, keys = rows_in_order(index._order)
    slots = keys % len(index._priorities)
    require(len(keys) == index._size, "the size is the number of rows ranked")
    require(index._size == np.count_nonzero(index._priorities >= 0.0), "every row that is not dead is ranked")
    require(len(np.unique(slots)) == index._size, "no row is ranked twice")
    require(np.array_equal(index._priorities[slots], priorities), "rows are ranked by their own priorities")
    require(np.array_equal(np.lexsort((-keys, -priorities)), np.arange(len(keys))), "rows are in order of rank")


def nbytes(index: PriorityIndex) -> int:
    """Memory of an index's arrays in bytes, without the priority array."""
    arrays: dict[int, int] = {}
    for name, value in vars(index).items():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, np.ndarray) and name != "_arguments" and each is not vars(index)["_priorities"]:
                arrays[id(each)] = each.nbytes
    return sum(arrays.values())


def rows_in_order(tree: RankTree) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return priorities and keys of all rows in order of rank, checking the whole tree on the way.

    Raises:
        AssertionError: the tree is invalid.
    """
    root, height = int(tree.state[ROOT]), int(tree.state[HEIGHT])
    require(height == 0 or tree.sizes[root] > 1, "an inner root has at least two children")
    leaves: list[int] = []
    inner: list[int] = []
    _check_node(tree, root, height, (BEFORE_ALL, 0), (UNUSED, 0), leaves, inner)
    _check_pool(tree, FREE_INNER, inner, range(len(tree.children)))
    _check_pool(tree, FREE_LEAF, leaves, range(len(tree.children), len(tree.sizes)))
    sizes = tree.sizes[leaves]
    places = np.arange(WIDTH) < sizes[:, None]
    return tree.priorities[leaves][places], tree.keys[leaves][places]


def _check_node(
    tree: RankTree, node: int, height: int, begin: Row, end: Row, leaves: list[int], inner: list[int]
) -> int:
    """Check a node and all under it, append them to ``leaves`` and ``inner``, and return the number of rows.

    Args:
        tree: the tree.
        node: which node.
        height: of the node; 0 for a leaf.
        begin: boundary of the node, which no row of the node outranks.
        end: the next boundary, which every row of the node outranks.
        leaves: leaves so far, in order.
        inner: inner nodes so far.
    """
    size = int(tree.sizes[node])
    least = 0 if node == tree.state[ROOT] else LEAST_ENTRIES
    require(least <= size <= WIDTH, "a node has neither too few entries nor too many")
    require(bool((tree.priorities[node, size:] == UNUSED).all()), "unused entries outrank nothing")
    entries = list(zip(tree.priorities[node, :size].tolist(), tree.keys[node, :size].tolist(), strict=True))
    if height == 0:
        leaves.append(node)
        require(not entries or begin >= entries[0] >= entries[-1] > end, "rows lie between two boundaries")
        return size
    inner.append(node)
    require(entries[0] == begin, "the first child of a node has the boundary of the node")
    rows = 0
    for at, (boundary, after) in enumerate(pairwise([*entries, end])):
        rows += _check_node(tree, int(tree.children[node, at]), height - 1, boundary, after, leaves, inner)
        require(rows == tree.rows_up_to[node, at], "a node counts the rows up to the end of each child")
    require(bool((tree.rows_up_to[node, size:] == rows).all()), "unused entries of a node repeat its number of rows")
    return rows


def _check_pool(tree: RankTree, pool: int, used: list[int], nodes: range) -> None:
    """Check that every one of ``nodes`` is either used or in the pool."""
    unused: list[int] = []
    node = int(tree.state[pool])
    while node in nodes and len(unused) < len(nodes):
        unused.append(node)
        node = int(tree.next_free[node])
    require(sorted([*used, *unused]) == list(nodes), "every node is either in the tree or in its pool")
