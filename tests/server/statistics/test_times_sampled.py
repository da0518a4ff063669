"""Numbers of draws, compared with a dict of counts."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_server.table.times_sampled import TimesSampled

CAPACITY = 10
SLOTS = CAPACITY + 5


@settings(max_examples=100)
@given(
    st.lists(st.one_of(st.integers(1, 5), st.lists(st.integers(0, CAPACITY - 1), min_size=1, max_size=40)), max_size=40)
)
def test_bars_count_the_live_rows_by_how_often_they_were_drawn(steps: list[int | list[int]]) -> None:
    """A number is a number of rows to insert; a list has the positions of live rows to draw."""
    sampled, counts, inserted = TimesSampled(SLOTS), dict[int, int](), 0
    for step in steps:
        if isinstance(step, int):
            sampled.appear(step)
            counts |= dict.fromkeys(range(inserted, inserted + step), 0)
            inserted += step
            gone = [key for key in counts if key < inserted - CAPACITY]
            sampled.disappear(np.array(gone, np.int64))
            for key in gone:
                del counts[key]
        elif counts:
            keys = [sorted(counts)[place % len(counts)] for place in step]
            sampled.draw(np.array(keys, np.int64))
            for key in keys:
                counts[key] += 1
        bars = list(sampled.bars())
        assert sum(rows for _, _, rows in bars) == len(counts)
        for at_least, at_most, rows in bars:
            assert rows == sum(1 for count in counts.values() if at_least <= count <= at_most) > 0


def test_bars_are_0_then_1_then_powers_of_two() -> None:
    sampled = TimesSampled(SLOTS)
    sampled.appear(6)
    for key, count in enumerate([0, 1, 2, 3, 4, 1000]):
        sampled.draw(np.full(count, key, np.int64))
    assert list(sampled.bars()) == [(0, 0, 1), (1, 1, 1), (2, 3, 2), (4, 7, 1), (512, 1023, 1)]
