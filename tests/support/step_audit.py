"""Compares what a server draws from a table of steps with the oracle."""

from __future__ import annotations

import numpy as np
from replay_proto.steps import WindowShape

from tests.support.caller import CalledTable, ReadRows
from tests.support.step_oracle import Oracle

_DRAWN = 200


def drawable_keys(table: CalledTable, rows: ReadRows, shape: WindowShape | None) -> set[int]:
    """The keys that can be drawn. In a table of steps, check that exactly those of complete windows can.

    Args:
        table: a table without running inserts.
        rows: all its live rows.
        shape: its windows; None: it is not a table of steps.

    Raises:
        AssertionError: other rows can be drawn, or a window has other rows than the oracle's.
    """
    if shape is None:
        return set(rows.keys.tolist())
    oracle, oldest = Oracle(shape), min(rows.keys.tolist(), default=0)
    fields = (rows.streams, rows.episodes, rows.steps, rows.ends)
    for stream, episode, step, end in zip(*(values.tolist() for values in fields), strict=True):
        oracle.insert((stream, episode, step, 1, end))
    drawable = {oldest + place for place in oracle.drawable}
    assert set(rows.keys[~np.isnan(rows.priorities)].tolist()) == drawable, "other rows can be drawn"
    if drawable:
        drawn = table.sample(_DRAWN)
        windows = np.split(drawn.values, np.cumsum(drawn.window_sizes)[:-1])
        for key, window in zip(drawn.keys.tolist(), windows, strict=True):
            expected = oracle.window(key - oldest)
            assert expected is not None, f"row {key} has no complete window"
            before, after = expected
            assert window.tolist() == rows.values[[*before, *after]].tolist(), f"row {key} has another window"
    return drawable
