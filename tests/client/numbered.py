"""Self-identifying rows: every column is derived from the row's number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_client import Batch


def row(number: int) -> dict[str, Any]:
    """One row, for `Writer.append`."""
    return {
        "number": number,
        "obs": np.full(3, number, np.float32),
        "done": number % 2 == 0,
    }


def rows(numbers: ArrayLike) -> dict[str, NDArray[Any]]:
    """Rows for `Table.insert`."""
    array = np.asarray(numbers, np.int64)
    return {
        "number": array,
        "obs": np.repeat(array[:, None], 3, axis=1).astype(np.float32),
        "done": array % 2 == 0,
    }


def assert_whole(columns: Mapping[str, NDArray[Any]]) -> None:
    """Assert that every row equals the row that `row` creates."""
    for name, expected in rows(columns["number"]).items():
        np.testing.assert_array_equal(columns[name], expected)


def exhaust(batches: Iterable[Batch]) -> None:
    """Draw until that raises an error: batches in flight may still arrive."""
    for _ in batches:
        pass
