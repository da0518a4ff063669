"""Requests and results of draws."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay_server.table.items.items import Windows

NO_KEYS = np.empty(0, np.int64)


class DrawMode(Enum):
    """How a draw chooses its points. A point between 0 and the total mass selects one row."""

    STRATIFIED = "stratified"
    """One point in each of ``batch_size`` equal segments of the mass, shuffled (Schaul et al. 2016, section 3.3)."""
    INDEPENDENT = "independent"
    """Each point is chosen from the whole mass, independently of the others."""
    WITHOUT_REPLACEMENT = "without_replacement"
    """Each row is drawn from the mass of the rows that are not in the batch yet."""
    NEWEST_FIRST = "newest_first"
    """As `STRATIFIED`, but rows that no such draw has returned yet take the first places; see `NewRowsFirst`."""


class WeightNorm(Enum):
    """What importance-sampling weights are divided by."""

    BATCH = "batch"
    """The largest weight in the batch."""
    TABLE = "table"
    """The weight of the least probable live row with non-zero mass."""


class Draw(NamedTuple):
    """Parameters of a draw."""

    batch_size: int
    """Number of rows, at least 1."""
    beta: float
    """Exponent of the weights, at least 0."""
    weight_norm: WeightNorm = WeightNorm.BATCH
    """The divisor of the weights."""
    mode: DrawMode = DrawMode.STRATIFIED
    """How the points are chosen."""

    @property
    def least_drawable(self) -> int:
        """Number of rows that the table must be able to draw."""
        return self.batch_size if self.mode is DrawMode.WITHOUT_REPLACEMENT else 1


class Points(NamedTuple):
    """What a draw chooses at random, or because it is new. The same points draw the same rows of the same table."""

    fractions: NDArray[np.float64]
    """float64[batches * batch_size] in [0, 1), batch after batch: fractions of the total mass."""
    newest: NDArray[np.int64] = NO_KEYS
    """int64[n]: keys of the rows in the first places."""


class DrawnBatch(NamedTuple):
    """Rows drawn, and the state of the table at the time of the draw."""

    keys: NDArray[np.int64]
    """int64[batch]: key of each drawn row; in a table of steps, of each anchor."""
    probabilities: NDArray[np.float64]
    """float64[batch]: mass divided by total mass; empty for rows that the caller chose."""
    weights: NDArray[np.float32]
    """float32[batch]: importance-sampling weights, at most 1; empty for rows that the caller chose."""
    beta: float
    """The exponent of the weights."""
    size: int
    """Number of live rows."""
    total_mass: float
    """Mass of all live rows."""
    smallest_probability: float
    """Probability of the least probable live row with non-zero mass."""
    inserted: int
    """Number of rows ever inserted."""
    drawable: int
    """Number of rows that could be drawn."""
    windows: Windows | None
    """The windows of the drawn anchors; None unless the table is a table of steps."""
