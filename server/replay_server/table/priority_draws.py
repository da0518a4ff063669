"""Draws in proportion to mass, with replacement: rows stay until newer ones replace them."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.index import Drawn, LiveRows, PriorityIndex
from replay_server.storage.header import Header
from replay_server.storage.table_config import TableConfig
from replay_server.table.draws import Draw, choose_fractions
from replay_server.table.limiter import LimiterGate


class PriorityDraws:
    """The draw policy of a priority index, with the table's rate limiter, if any, as its gate."""

    copyable = True

    def __init__(self, config: TableConfig, header: Header, index: PriorityIndex) -> None:
        """Draw by ``index``; the limiter continues from the state in ``header``."""
        self.gate = None if config.rate_limit is None else LimiterGate(config.rate_limit, config.capacity, header)
        self.turn = nullcontext()
        self._index = index
        self._random = np.random.default_rng(config.seed)

    def choose_points(self, draw: Draw, count: int) -> NDArray[np.float64]:
        """Choose fractions of the mass by the draw's mode. This advances the random generator."""
        fractions = [choose_fractions(self._random, draw.batch_size, draw.mode) for _ in range(count)]
        return np.concatenate(fractions) if count > 1 else fractions[0]

    def draw(self, points: NDArray[np.float64], live: LiveRows) -> Drawn:
        """The rows that lie at these fractions of the mass."""
        return self._index.draw(points, live)

    def smallest_probability(self, live: LiveRows) -> float:
        """Probability of the least probable row with non-zero mass."""
        return self._index.smallest_probability(live)

    def probabilities(
        self, priorities: NDArray[np.float64], ranks: NDArray[np.int64], live: LiveRows
    ) -> NDArray[np.float64]:
        """Mass divided by total mass; equal for all rows if the total is zero."""
        if self._index.total_mass <= 0.0:
            return np.full(len(priorities), 1 / max(1, live.size))
        return self._index.masses(priorities, ranks) / self._index.total_mass

    def hand_out(self, rows: int) -> None:
        """Do nothing: rows stay."""
