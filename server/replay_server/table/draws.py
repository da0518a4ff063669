"""Requests and results of draws, and the interface of draw policies.

`replay_server.table.priority_draws` and `replay_server.table.oldest_first` implement it.
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
    """Parameters of a draw."""

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
    """Decides which rows a draw returns, and what happens to them."""

    @property
    def gate(self) -> Gate | None:
        """The gate of draws and inserts, if any."""

    @property
    def turn(self) -> AbstractAsyncContextManager[Any]:
        """Lock held by a draw until its rows are handed out."""

    @property
    def copyable(self) -> bool:
        """Whether clients on this host may copy drawn rows, because draws do not remove them."""

    def choose_points(self, draw: Draw, count: int) -> NDArray[np.float64]:
        """float64[count * batch_size] in [0, 1): the points of the mass for ``count`` batches."""

    def draw(self, points: NDArray[np.float64], live: LiveRows) -> Drawn:
        """Return the rows at these points; changes nothing."""

    def smallest_probability(self, live: LiveRows) -> float:
        """The smallest probability of a row that can be drawn; ``live`` has at least one."""

    def probabilities(
        self, priorities: NDArray[np.float64], ranks: NDArray[np.int64], live: LiveRows
    ) -> NDArray[np.float64]:
        """float64[n]: current probabilities of real or hypothetical rows with these priorities and ranks.

        Rank 1 is the largest priority; among equals, the newest comes first.
        """

    def hand_out(self, rows: int) -> None:
        """Count the last ``rows`` drawn rows as handed out."""


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
    """Importance-sampling weights, float32[batch], divided by the weight for the probability ``reference``.

    ``w = (N * P)**-beta / (N * P_ref)**-beta = (P_ref / P)**beta`` (Schaul et al. 2016, section 3.4).
    """
    weights = np.divide(reference, probabilities)
    np.power(weights, beta, out=weights)
    return weights.astype(np.float32)
