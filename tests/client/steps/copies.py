"""Writes episodes with known priorities, and compares tables of steps with their copies."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from replay_client import Rows, Table
from replay_client._learning.answers import joined_rows
from replay_proto.steps import WindowShape

from tests.client.steps.numbered_episodes import play

DRAWN = 3000


def write_episodes(table: Table, *, streams: int, rows: int) -> None:
    """Write episodes in turns, of which the last stay open, and give every drawable row a priority of its own."""
    with table.writer(streams=streams, block_rows=7) as writer:
        actors = [play(writer[stream], stream) for stream in range(streams)]
        for number in range(rows):
            next(actors[number % streams])
    keys = np.arange(rows)
    table.update_priorities(keys, 1 + keys / 8)


def assert_same_table(source: Table, copy: Table) -> None:
    """Assert that a copy, whose keys are moved by a constant, has the same rows and draws the same windows."""
    read, copied = joined_rows(list(source.rows())), joined_rows(list(copy.rows()))
    moved = copied.row_keys[0] - read.row_keys[0]
    np.testing.assert_array_equal(copied.row_keys - moved, read.row_keys)
    assert_same_rows(read, copied)
    values, copied_values = windows_of(source), windows_of(copy)
    assert {key - moved for key in copied_values} == set(values)
    for key, window in values.items():
        for name, value in window.items():
            np.testing.assert_array_equal(copied_values[key + moved][name], value, err_msg=name)


def assert_same_rows(read: Rows, copied: Rows) -> None:
    """Assert that rows are equal, except that streams may have other numbers."""
    for name in ("priorities", "episodes", "steps", "ends"):
        np.testing.assert_array_equal(getattr(copied, name), getattr(read, name), err_msg=name)
    for name, values in read.items():
        np.testing.assert_array_equal(copied[name], values, err_msg=name, strict=True)
    pairs = set(zip(read.streams.tolist(), copied.streams.tolist(), strict=True))
    assert len(pairs) == len({old for old, _ in pairs}) == len({new for _, new in pairs})


def windows_of(table: Table) -> dict[int, dict[str, object]]:
    """The columns and the probability of every drawable row, by key, from so many draws that none is left out."""
    found: dict[int, dict[str, object]] = {}
    drawable = table.stats().steps.drawable  # type: ignore[union-attr]
    while len(found) < drawable:
        batch = table.sample(DRAWN, beta=0.5)
        for place, key in enumerate(batch.row_keys.tolist()):
            found[key] = {name: values[place] for name, values in batch.items()}
            found[key]["probability"] = round(float(batch.probabilities[place]), 12)
    return found


def expected_drawable(rows: Rows, window: WindowShape) -> set[int]:
    """Positions of the rows that can be drawn if these rows, in this order, are all that there is of their episodes."""
    assert rows.steps is not None
    assert rows.ends is not None
    forward, backward, period = window
    there: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    origins = list(zip(rows.streams.tolist(), rows.episodes.tolist(), rows.steps.tolist(), strict=True))
    for (stream, episode, step), end in zip(origins, rows.ends.tolist(), strict=True):
        there[stream, episode][step] = end
    drawable = set()
    for place, (stream, episode, step) in enumerate(origins):
        ends = there[stream, episode]
        last = next((number for number in range(step, step + forward) if ends.get(number)), step + forward)
        needed = range(max(0, step - backward), last + 1)
        if not ends[step] and step % period == 0 and all(number in ends for number in needed):
            drawable.add(place)
    return drawable
