"""Draws in proportion to mass, with replacement: rows stay until newer ones take their place."""

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
    """Draws by an index of priorities, held up by a rate limiter if the table has one. A `DrawPolicy`."""

    copyable = True

    def __init__(self, config: TableConfig, header: Header, index: PriorityIndex) -> None:
        """Draw by ``index``; the limiter goes on from the state in ``header``."""
        self.gate = None if config.rate_limit is None else LimiterGate(config.rate_limit, config.capacity, header)
        self.turn = nullcontext()
        self._index = index
        self._random = np.random.default_rng(config.seed)

    def choose_points(self, draw: Draw, count: int) -> NDArray[np.float64]:
        """Fractions of the mass, by the draw's mode. This moves the seed's sequence."""
        fractions = [choose_fractions(self._random, draw.batch_size, draw.mode) for _ in range(count)]
        return np.concatenate(fractions) if count > 1 else fractions[0]

    def draw(self, points: NDArray[np.float64], live: LiveRows) -> Drawn:
        """The rows that lie at these fractions of the mass."""
        return self._index.draw(points, live)

    def smallest_probability(self, live: LiveRows) -> float:
        """That of the least probable row of non-zero mass."""
        return self._index.smallest_probability(live)

    def probabilities(
        self, priorities: NDArray[np.float64], ranks: NDArray[np.int64], live: LiveRows
    ) -> NDArray[np.float64]:
        """Mass over total mass; the same for all rows while that is zero."""
        if self._index.total_mass <= 0.0:
            return np.full(len(priorities), 1 / max(1, live.size))
        return self._index.masses(priorities, ranks) / self._index.total_mass

    def hand_out(self, rows: int) -> None:
        """Nothing: rows stay."""
