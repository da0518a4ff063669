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
    """Draws by an index of priorities, held up by a rate limiter if the table has one.

    `replay_server.table.oldest_first.OldestFirst` has the same members: a table has one of the two.
    """

    copyable = True
    """Whether clients on this host may copy rows that were drawn: they stay where they are."""

    def __init__(self, config: TableConfig, header: Header, index: PriorityIndex) -> None:
        """Draw by ``index``; the limiter continues from the state in ``header``."""
        self.gate = None if config.rate_limit is None else LimiterGate(config.rate_limit, config.capacity, header)
        """What decides when rows may go out and come in; None: nothing does."""
        self.turn = nullcontext()
        """Held by a draw from choosing rows until they are handed out."""
        self._index = index
        self._random = np.random.default_rng(config.seed)

    def choose_points(self, draw: Draw, count: int) -> NDArray[np.float64]:
        """float64[count * batch_size] in [0, 1): of the mass, by the draw's mode. Moves the seed's sequence."""
        fractions = [choose_fractions(self._random, draw.batch_size, draw.mode) for _ in range(count)]
        return np.concatenate(fractions) if count > 1 else fractions[0]

    def draw(self, points: NDArray[np.float64], live: LiveRows) -> Drawn:
        """The rows that lie at these fractions of the mass. Nothing has changed until they are handed out."""
        return self._index.draw(points, live)

    def smallest_probability(self, live: LiveRows) -> float:
        """That of the least probable row of non-zero mass; ``live`` has at least one row."""
        return self._index.smallest_probability(live)

    def probabilities(
        self, priorities: NDArray[np.float64], ranks: NDArray[np.int64], live: LiveRows
    ) -> NDArray[np.float64]:
        """float64[n]: with which rows of these priorities and ranks are drawn now, whether there are such or not.

        Mass over total mass; the same for all rows while that is zero. Rank 1 is the largest priority; of equal ones
        the newest comes first.
        """
        if self._index.total_mass <= 0.0:
            return np.full(len(priorities), 1 / max(1, live.size))
        return self._index.masses(priorities, ranks) / self._index.total_mass

    def hand_out(self, rows: int) -> None:
        """Do nothing: rows stay."""
