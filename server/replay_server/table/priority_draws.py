"""Draws in proportion to mass: rows stay in the table until newer ones replace them."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray
from replay_proto.rate_limit import RateLimit

from replay_server.backends.index import DEAD_PRIORITY, LEAST_PROBABILITY, Drawn, LiveRows, PriorityIndex
from replay_server.storage.runs import steps_of
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.distinct import draw_distinct
from replay_server.table.draws import NO_KEYS, Draw, DrawMode, Points
from replay_server.table.gates import LimiterGate
from replay_server.table.items.items import Items
from replay_server.table.items.limited import LimitedItems
from replay_server.table.limited_draws import draw_limited
from replay_server.table.newest_first import NewRowsFirst
from replay_server.table.stratified import stratified_fractions


class PriorityDraws:
    """Draws rows by priority.

    `replay_server.table.oldest_first.Queue` has the same public members. Each table uses one of these classes.
    """

    def __init__(self, directory: TableDirectory, index: PriorityIndex, items: Items) -> None:
        """Draw from ``index``; the rate limiter, if any, continues from the state in the header."""
        config, header = directory.config, directory.header
        limit = RateLimit() if config.rate_limit is None and config.most_draws else config.rate_limit
        self.gate = None if limit is None else LimiterGate(limit, config, header, items)
        """Limits the draws; None if the table has neither a rate limit nor `TableConfig.most_draws`."""
        self.turn = asyncio.Lock() if config.most_draws else nullcontext()
        """Held by a draw from choosing rows until handing them out. It does nothing unless draws take rows away."""
        self.copyable = not config.most_draws
        """Whether clients on this host may copy drawn rows from the ring, and replace a batch that was overwritten
        meanwhile by another one."""
        self.replace_contents(index, items)
        self._random = np.random.default_rng(config.seed)
        self._directory = directory
        self._new: NewRowsFirst | None = None
        """New rows; None before the first newest-first draw, because remembering them costs time."""

    def replace_contents(self, index: PriorityIndex, items: Items) -> None:
        """Draw from another index from now on, because the table is being reset."""
        self._index, self._new = index, None
        self._limited = items if isinstance(items, LimitedItems) else None

    def arrived(self, keys: NDArray[np.int64]) -> None:
        """Take notice of rows or windows that can now be drawn. keys: int64[n]."""
        if self._new is None:
            return
        if self._new.stride > 1:
            keys = keys[steps_of(self._directory.rows.links(keys)) % np.uint64(self._new.stride) == 0]
        self._new.add(keys)

    def choose_points(self, draw: Draw, count: int) -> Points:
        """Return random points for all batches, and the new rows that a newest-first draw takes."""
        if draw.mode is DrawMode.STRATIFIED:
            return Points(stratified_fractions(self._random, draw.batch_size, count))
        if draw.mode is not DrawMode.NEWEST_FIRST:
            return Points(self._random.random(count * draw.batch_size))
        points = Points(stratified_fractions(self._random, draw.batch_size, count))
        if self._new is None:
            self._new = NewRowsFirst(self._directory.config.steps)
        newest = NO_KEYS
        while missing := min(len(points.fractions) - len(newest), self._new.count):
            taken = self._new.take(missing)
            newest = np.concatenate([newest, taken[self._chances(taken) > 0.0]])
        return points._replace(newest=newest)

    def draw(self, draw: Draw, points: Points, live: LiveRows) -> Drawn:
        """Return the rows of all batches at these fractions of the mass. This changes no state; see `hand_out`."""
        if self._limited is not None:  # without replacement only if each row is drawn once
            return draw_limited(self._index, self._limited, points.fractions, self._directory.priorities, live)
        if draw.mode is not DrawMode.WITHOUT_REPLACEMENT:
            drawn = self._index.draw(points.fractions, live)
            return self._with_newest(drawn, points.newest) if len(points.newest) else drawn
        batches = points.fractions.reshape(-1, draw.batch_size)
        parts = [draw_distinct(self._index, each, self._directory.priorities, live) for each in batches]
        return Drawn(*map(np.concatenate, zip(*parts, strict=True)))

    def _with_newest(self, drawn: Drawn, newest: NDArray[np.int64]) -> Drawn:
        """Return drawn rows, of which the first ones are replaced by new rows that can still be drawn."""
        chances = self._chances(newest)
        newest, chances = newest[chances > 0.0], chances[chances > 0.0]
        return Drawn(
            np.concatenate([newest, drawn.keys[len(newest) :]]),
            np.concatenate([chances, drawn.probabilities[len(newest) :]]),
        )

    def _chances(self, keys: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return float64[n]: the probabilities of these rows, 0 for those that cannot be drawn. Not by rank."""
        config, header = self._directory.config, self._directory.header
        live = LiveRows(header.oldest, header.inserted - header.oldest, config.slots)
        priorities = self._directory.priorities[keys % config.slots]
        are_left = (keys >= live.oldest) & (priorities != DEAD_PRIORITY)
        chances = np.zeros(len(keys))
        chances[are_left] = self.probabilities(priorities[are_left], NO_KEYS, live)
        return chances

    def smallest_probability(self, live: LiveRows) -> float:
        """Return the probability of the least probable row with non-zero mass; ``live`` has at least one row."""
        return self._index.smallest_probability(live)

    def probabilities(
        self, priorities: NDArray[np.float64], ranks: NDArray[np.int64], live: LiveRows
    ) -> NDArray[np.float64]:
        """Return the current probabilities, float64[n], of hypothetical rows with these priorities and ranks.

        A probability is the mass divided by the total mass, or 1 / size if the total mass is zero. It is 0 only if the
        mass is. Rank 1 has the largest priority; among rows with equal priority, newer rows rank first.
        """
        if self._index.total_mass <= 0.0:
            return np.full(len(priorities), 1 / max(1, live.size))
        masses = self._index.masses(priorities, ranks)
        return np.where(masses > 0.0, np.maximum(masses / self._index.total_mass, LEAST_PROBABILITY), 0.0)

    def hand_out(self, rows: int, live_keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the draws of a batch's live rows, and return the rows that had their last one."""
        if self._limited is None:
            return NO_KEYS
        assert self.gate is not None
        self.gate.count_handed_out(rows)
        return self._limited.draw(live_keys)
