"""What a draw asks for and gives, and the seam between a table and its order: by priority, or the oldest first.

`replay_server.table.priority_draws` and `replay_server.table.oldest_first` have the two.
"""

from __future__ import annotations

import math
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.index import Drawn, LiveRows
from replay_server.table.gates import Gate


class DrawMode(Enum):
    """How the points of a draw are chosen."""

    STRATIFIED = "stratified"
    """One in each of ``batch_size`` equal segments of the mass, then shuffled (Schaul et al. 2016, section 3.3)."""
    INDEPENDENT = "independent"
    """Each over the whole mass."""


class WeightNorm(Enum):
    """What importance-sampling weights are divided by."""

    BATCH = "batch"
    """The largest weight in the batch."""
    TABLE = "table"
    """The weight of the least probable live row of non-zero mass."""


class Draw(NamedTuple):
    """What a caller asks for."""

    batch_size: int
    """Rows, at least 1."""
    beta: float
    """Exponent of the weights, at least 0."""
    weight_norm: WeightNorm = WeightNorm.BATCH
    """What the weights are divided by."""
    mode: DrawMode = DrawMode.STRATIFIED
    """How the points are chosen."""


class DrawnBatch(NamedTuple):
    """Rows drawn, and the state of the table at that moment."""

    keys: NDArray[np.int64]
    """int64[batch]."""
    probabilities: NDArray[np.float64]
    """float64[batch]: mass over total mass."""
    weights: NDArray[np.float32]
    """float32[batch]: importance-sampling weights, at most 1."""
    beta: float
    """The exponent of the weights."""
    size: int
    """Live rows."""
    total_mass: float
    """Mass of all live rows."""
    smallest_probability: float
    """Probability of the least probable live row of non-zero mass."""
    inserted: int
    """Rows ever inserted."""


class DrawPolicy(Protocol):
    """Which rows of a table a draw takes, and what becomes of them."""

    @property
    def gate(self) -> Gate | None:
        """What decides when rows may go out and come in; None: nothing does."""

    @property
    def turn(self) -> AbstractAsyncContextManager[Any]:
        """Held by a draw from choosing rows until they are handed out."""

    @property
    def copyable(self) -> bool:
        """Whether clients on this host may copy rows that were drawn: they stay where they are."""

    def choose_points(self, draw: Draw, count: int) -> NDArray[np.float64]:
        """float64[count * batch_size] in [0, 1): at which points of the mass ``count`` batches are drawn."""

    def draw(self, points: NDArray[np.float64], live: LiveRows) -> Drawn:
        """The rows at these points. Nothing has changed until they are handed out."""

    def smallest_probability(self, live: LiveRows) -> float:
        """The smallest probability of a row that can be drawn; ``live`` has at least one."""

    def probabilities(
        self, priorities: NDArray[np.float64], ranks: NDArray[np.int64], live: LiveRows
    ) -> NDArray[np.float64]:
        """float64[n]: with which rows of these priorities and ranks are drawn now, whether there are such or not.

        Rank 1 is the largest priority; of equal ones the newest comes first.
        """

    def hand_out(self, rows: int) -> None:
        """So many rows, those drawn last, are on their way to the caller."""


def choose_fractions(random: np.random.Generator, batch_size: int, mode: DrawMode) -> NDArray[np.float64]:
    """float64[batch_size] in [0, 1): points of the total mass, as fractions of it."""
    fractions = random.random(batch_size)
    if mode is DrawMode.STRATIFIED:
        fractions += random.permutation(batch_size)
        fractions /= batch_size
        # (n - 1 + u) / n can round up to 1.
        np.minimum(fractions, _BELOW_ONE, out=fractions)
    return fractions


_BELOW_ONE = math.nextafter(1.0, 0.0)


def importance_weights(probabilities: NDArray[np.float64], reference: float, beta: float) -> NDArray[np.float32]:
    """Importance-sampling weights, float32[batch], over the weight of a row of probability ``reference``.

    ``w = (N * P)**-beta / (N * P_ref)**-beta = (P_ref / P)**beta`` (Schaul et al. 2016, section 3.4).
    """
    weights = np.divide(reference, probabilities)
    np.power(weights, beta, out=weights)
    return weights.astype(np.float32)
