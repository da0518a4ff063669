"""Compares what a table of steps draws with the oracle."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from replay_client import Batch, Column, Table
from replay_proto.steps import Item

from tests.client.steps.oracle import Columns
from tests.client.steps.planned_episodes import PlannedEpisode, drawn

Place = tuple[int, int, int]
"""Stream, episode and step."""


def stored_columns(columns: Columns) -> dict[str, Column]:
    return {name: column for name, column in columns.items() if isinstance(column, Column)}


def places(table: Table) -> dict[int, Place]:
    """Where each row comes from, by key."""
    rows = table.read(np.arange(table.describe().inserted))
    assert rows.steps is not None
    origins = zip(rows.streams.tolist(), rows.episodes.tolist(), rows.steps.tolist(), strict=True)
    return dict(zip(rows.row_keys.tolist(), origins, strict=True))


def assert_drawn(
    batch: Batch, columns: Columns, item: Item, made: Mapping[tuple[int, int], PlannedEpisode], at: Mapping[int, Place]
) -> set[Place]:
    """Assert that a batch has what the oracle builds; return what was drawn."""
    found = [at[key] for key in batch.row_keys.tolist()]
    expected = [drawn(columns, item, made[stream, episode], step) for stream, episode, step in found]
    assert set(batch) == set(expected[0])
    for name, values in batch.items():
        np.testing.assert_array_equal(values, np.stack([each[name] for each in expected]), err_msg=name, strict=True)
    return set(found)
