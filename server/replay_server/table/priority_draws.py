"""Draws in proportion to mass, with replacement: rows stay in the table until newer ones replace them."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray

from replay_server.backends.index import Drawn, LiveRows, PriorityIndex
from replay_server.storage.header import Header
from replay_server.storage.table_config import TableConfig
from replay_server.table.distinct import draw_distinct
from replay_server.table.draws import NO_KEYS, Draw, DrawMode
from replay_server.table.gates import LimiterGate
from replay_server.table.items.items import Items
from replay_server.table.stratified import stratified_fractions


class PriorityDraws:
    """Draws rows by priority.

    `replay_server.table.oldest_first.Queue` has the same public members. Each table uses one of these classes.
    """

    copyable = True
    """Whether clients on this host may copy drawn rows from the ring. They may, because the rows stay there."""

    def __init__(
        self,
        config: TableConfig,
        header: Header,
        index: PriorityIndex,
        items: Items,
        priorities: NDArray[np.float64],
    ) -> None:
        """Draw from ``index``; the rate limiter, if any, continues from the state in ``header``.

        ``priorities`` are those of all slots, float64[slots].
        """
        self.gate = None if config.rate_limit is None else LimiterGate(config.rate_limit, config, header, items)
        """The rate limiter; None if the table has no rate limit."""
        self.turn = nullcontext()
        """Held by a draw from choosing rows until handing them out. It does nothing: only queues need a lock."""
        self.replace_index(index)
        self._random = np.random.default_rng(config.seed)
        self._priorities = priorities

    def replace_index(self, index: PriorityIndex) -> None:
        """Draw from another index from now on, because the table is being reset."""
        self._index = index

    def choose_points(self, draw: Draw, count: int) -> NDArray[np.float64]:
        """Return random points for all batches, as fractions of the mass: float64[count * batch_size] in [0, 1)."""
        if draw.mode is not DrawMode.STRATIFIED:
            return self._random.random(count * draw.batch_size)
        return stratified_fractions(self._random, draw.batch_size, count)

    def draw(self, draw: Draw, points: NDArray[np.float64], live: LiveRows) -> Drawn:
        """Return the rows of all batches at these fractions of the mass. This changes no state; see `hand_out`."""
        if draw.mode is not DrawMode.WITHOUT_REPLACEMENT:
            return self._index.draw(points, live)
        batches = [
            draw_distinct(self._index, each, self._priorities, live) for each in points.reshape(-1, draw.batch_size)
        ]
        return Drawn(*map(np.concatenate, zip(*batches, strict=True)))

    def smallest_probability(self, live: LiveRows) -> float:
        """Return the probability of the least probable row with non-zero mass; ``live`` has at least one row."""
        return self._index.smallest_probability(live)

    def probabilities(
        self, priorities: NDArray[np.float64], ranks: NDArray[np.int64], live: LiveRows
    ) -> NDArray[np.float64]:
        """Return the current probabilities, float64[n], of hypothetical rows with these priorities and ranks.

        A probability is the mass divided by the total mass, or 1 / size if the total mass is zero. Rank 1 has the
        largest priority; among rows with equal priority, newer rows rank first.
        """
        if self._index.total_mass <= 0.0:
            return np.full(len(priorities), 1 / max(1, live.size))
        return self._index.masses(priorities, ranks) / self._index.total_mass

    def hand_out(self, rows: int) -> NDArray[np.int64]:
        """Do nothing: drawn rows stay in the table."""
        return NO_KEYS
