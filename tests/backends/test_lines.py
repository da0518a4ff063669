"""What looks at a whole cache line at once, beside what looks at one number after the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from replay_server.backends.compile import kernel
from replay_server.backends.lines import LINE, count_above, step_over
from replay_server.backends.prefetch import prefetch, touch

ROWS = 50


@kernel
def _count(lines: NDArray[np.float64], at: int, number: float) -> int:
    prefetch(lines, at)
    return count_above(lines, at, number)


@kernel
def _step(lines: NDArray[np.int32], at: int, most: int) -> tuple[int, int]:
    touch(lines, at)
    return step_over(lines, at, most)


def test_entries_above_a_number_are_counted_and_equal_ones_are_not() -> None:
    generator = np.random.default_rng(0)
    lines = generator.integers(0, 10, (ROWS, LINE)).astype(np.float64)
    lines[::3, -2:] = -np.inf
    for row in range(ROWS):
        for number in (-1.0, 0.0, 4.0, 9.0, np.inf):
            assert _count(lines, row * LINE, number) == (lines[row] > number).sum()


def test_entries_are_stepped_over_as_far_as_their_sum_allows() -> None:
    generator = np.random.default_rng(0)
    lines = generator.integers(0, 5, (ROWS, LINE), dtype=np.int32)
    for row in range(ROWS):
        sums = np.cumsum(lines[row])
        for most in range(-1, 2 + int(sums[-1])):
            steps = int((sums <= most).sum())
            assert _step(lines, row * LINE, most) == (steps, lines[row, :steps].sum())


def test_sums_up_to_the_largest_count_of_four_bytes_are_stepped_over() -> None:
    largest = np.iinfo(np.int32).max
    lines = np.array([largest - 2, 0, 1, 1, 0, 0, 0, 0], dtype=np.int32)
    assert _step(lines, 0, largest - 3) == (0, 0)
    assert _step(lines, 0, largest - 2) == (2, largest - 2)
    assert _step(lines, 0, largest - 1) == (3, largest - 1)
    assert _step(lines, 0, largest) == (LINE, largest)
