"""What tables of steps store, and where."""

from __future__ import annotations

import numpy as np
from replay_client import Column, Table

from tests.client.steps.oracle import Columns

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
