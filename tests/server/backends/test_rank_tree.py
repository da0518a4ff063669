"""The rank tree alone, which grows and shrinks by whole levels."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_server.backends.structures import rank_tree
from replay_server.backends.structures.rank_tree.nodes import FILLED_ENTRIES, LEAST_ENTRIES

from tests.support.invariants import rows_in_order

ROWS = 60_000
PIECE = 12_000


def order_of(kind: str, priorities: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the keys in the order in which they are inserted or removed."""
    match kind:
        case "by rank":
            return np.argsort(-priorities)
        case "by rank, last first":
            return np.argsort(priorities)
        case "by age":
            return np.arange(len(priorities))
        case _:
            return np.random.default_rng(1).permutation(len(priorities))


@pytest.mark.parametrize("distinct", [True, False])
@pytest.mark.parametrize("coming", ["by rank", "by rank, last first", "by age", "at random"])
@pytest.mark.parametrize("going", ["by rank", "by rank, last first", "by age", "at random"])
def test_rows_are_in_order_as_the_tree_grows_from_nothing_and_shrinks_to_nothing(
    coming: str, going: str, distinct: bool
) -> None:
    priorities = np.random.default_rng(0).random(ROWS)
    if not distinct:
        priorities = np.floor(priorities * 3)
    tree = rank_tree.make_tree(ROWS)
    present = np.zeros(ROWS, dtype=bool)
    for keys in np.split(order_of(coming, priorities), ROWS // PIECE):
        put_in(tree, priorities, keys)
        present[keys] = True
        require_in_order(tree, priorities, present)
    for keys in np.split(order_of(going, priorities), ROWS // PIECE):
        take_out(tree, priorities, keys)
        present[keys] = False
        require_in_order(tree, priorities, present)


def put_in(tree: rank_tree.RankTree, priorities: NDArray[np.float64], keys: NDArray[np.int64]) -> None:
    for start in range(0, len(keys), rank_tree.MOST_MOVED):
        piece = keys[start : start + rank_tree.MOST_MOVED]
        rank_tree.move(tree, priorities[:0], keys[:0], priorities[piece], piece)


def take_out(tree: rank_tree.RankTree, priorities: NDArray[np.float64], keys: NDArray[np.int64]) -> None:
    for start in range(0, len(keys), rank_tree.MOST_MOVED):
        piece = keys[start : start + rank_tree.MOST_MOVED]
        rank_tree.move(tree, priorities[piece], piece, priorities[:0], keys[:0])


def require_in_order(tree: rank_tree.RankTree, priorities: NDArray[np.float64], present: NDArray[np.bool_]) -> None:
    expected = np.flatnonzero(present)
    expected = expected[np.lexsort((-expected, -priorities[expected]))]
    ranked_priorities, ranked_keys = rows_in_order(tree)
    np.testing.assert_array_equal(ranked_keys, expected)
    np.testing.assert_array_equal(ranked_priorities, priorities[expected])
    if len(expected):
        np.testing.assert_array_equal(rank_tree.keys_of_ranks(tree, np.arange(len(expected))), expected)
        assert rank_tree.largest_priority(tree) == priorities[expected[0]]
        assert rank_tree.smallest_priority(tree) == priorities[expected[-1]]


@pytest.mark.parametrize("rows", [0, 1, 48, 49, 64, 65, 3_000, 200_000])
def test_a_tree_filled_with_sorted_rows_is_as_one_that_grew(rows: int) -> None:
    tree = rank_tree.make_tree(max(rows, 1))
    keys = np.arange(rows)
    rank_tree.fill(tree, -keys.astype(np.float64), keys)
    require_in_order(tree, -keys.astype(np.float64), np.ones(rows, dtype=bool))


@pytest.mark.parametrize("distinct", [1, 3, 100_000])
@pytest.mark.parametrize("wrap", [1 << 31, 1 << 32, 3 << 31, 1 << 40])
def test_equal_rows_stay_in_order_where_half_of_a_key_begins_anew(wrap: int, distinct: int) -> None:
    live, step, steps = 4_000, 500, 24
    oldest = wrap - steps * step // 2
    generator = np.random.default_rng(0)
    keys = np.arange(oldest, oldest + live)
    priorities = generator.integers(0, distinct, live).astype(np.float64)
    tree = rank_tree.make_tree(live + step)
    order = np.lexsort((-keys, -priorities))
    rank_tree.fill(tree, priorities[order], keys[order])
    for _ in range(steps):
        new_keys = np.arange(keys[-1] + 1, keys[-1] + 1 + step)
        new = generator.integers(0, distinct, step).astype(np.float64)
        rank_tree.move(tree, priorities[:0], keys[:0], new, new_keys)
        rank_tree.move(tree, priorities[:step], keys[:step], priorities[:0], keys[:0])
        keys = np.concatenate((keys[step:], new_keys))
        priorities = np.concatenate((priorities[step:], new))
        order = np.lexsort((-keys, -priorities))
        np.testing.assert_array_equal(rows_in_order(tree)[1], keys[order])
        np.testing.assert_array_equal(rank_tree.keys_of_ranks(tree, np.arange(live)), keys[order])


def test_equal_rows_stay_in_order_over_laps_of_the_largest_ring() -> None:
    rows, lap = 2_000, rank_tree.MOST_RANKED - 2_000
    equal = np.ones(rows)
    tree = rank_tree.make_tree(2 * rows)
    keys = np.arange(rows)
    rank_tree.fill(tree, equal, keys[::-1].copy())
    for _ in range(5):
        later = keys + lap
        for start in range(0, rows, rank_tree.MOST_MOVED):
            piece = slice(start, start + rank_tree.MOST_MOVED)
            rank_tree.move(tree, equal[piece], keys[piece], equal[piece], later[piece])
        keys = later
        np.testing.assert_array_equal(rows_in_order(tree)[1], keys[::-1])
        np.testing.assert_array_equal(rank_tree.keys_of_ranks(tree, np.arange(rows)), keys[::-1])


def test_a_boundary_is_compared_by_its_whole_key_however_old_the_row_is_that_it_came_from() -> None:
    rows, lap, boundary = 24, rank_tree.MOST_RANKED - 1_000, np.array([5.0])
    priorities = np.concatenate((np.full(rows, 9.0), boundary, np.full(rows - 1, 4.0)))
    keys = np.concatenate((np.arange(rows)[::-1], [rows], np.arange(rows + 1, 2 * rows)[::-1]))
    tree = rank_tree.make_tree(400)
    rank_tree.fill(tree, priorities, keys)  # the second leaf starts with the row of priority 5
    rank_tree.move(tree, boundary, keys[rows : rows + 1], priorities[:0], keys[:0])
    priorities, keys = np.delete(priorities, rows), np.delete(keys, rows)
    for _ in range(3):
        rank_tree.move(tree, priorities, keys, priorities, keys + lap)
        keys = keys + lap
        newest = keys.max(keepdims=True) + 1
        rank_tree.move(tree, priorities[:0], keys[:0], boundary, newest)
        expected = np.concatenate((keys[:rows], newest, keys[rows:]))
        np.testing.assert_array_equal(rows_in_order(tree)[1], expected)
        rank_tree.move(tree, boundary, newest, priorities[:0], keys[:0])


def test_there_are_leaves_enough_for_the_batch_that_splits_most_of_them_while_all_are_nearly_empty() -> None:
    leaves, full = rank_tree.MOST_MOVED, FILLED_ENTRIES
    tree = rank_tree.make_tree(leaves * LEAST_ENTRIES)
    keys = np.arange(leaves * full)
    priorities = -keys.astype(np.float64)
    rank_tree.fill(tree, priorities, keys)
    take_out(tree, priorities, keys[keys % full >= LEAST_ENTRIES])
    assert len(rows_in_order(tree)[0]) == leaves * LEAST_ENTRIES
    emptied = keys[keys % full == 0]
    coming = len(keys) + np.arange(leaves)
    rank_tree.move(tree, priorities[emptied], emptied, coming.astype(np.float64), coming)
    expected = np.concatenate((coming[::-1], keys[(keys % full > 0) & (keys % full < LEAST_ENTRIES)]))
    np.testing.assert_array_equal(rows_in_order(tree)[1], expected)
