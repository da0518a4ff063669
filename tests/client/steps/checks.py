"""Compares a table of steps with the oracle: its rows, which steps can be drawn, how likely, and with which values."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from replay_client import Batch, StepStats, Table, TableEmptyError
from replay_client._learning.answers import joined_rows
from replay_client.aio import ReplayClient as AsyncReplayClient
from replay_server.flow.bounds import Bounds

from tests.client.steps.oracle import Row
from tests.client.steps.stories import NUMBER, Story
from tests.support import formulas


class Difference(Exception):  # noqa: N818 - not an error of the program
    """What a table draws differs from what the oracle says."""


def expect(ok: bool, what: str, *values: object) -> None:
    """Raise unless something holds."""
    if not ok:
        raise Difference(f"{what}: {values}")


class Check:
    """Compares a table with the oracle."""

    def __init__(self, story: Story, table: Table, address: str, *, is_copy: bool = False) -> None:
        """Of a story, with its table or a copy, whose rows may have other keys."""
        self.story, self.table, self.oracle = story, table, story.oracle
        self.address, self.has_own_keys = address, is_copy or story.is_sharded
        self.rows = 0
        self.items = 0

    def run(self) -> None:
        """Check all rows and items."""
        self._check_rows()
        expected = self.oracle.drawable()
        self.items = len(expected)
        self._check_stats()
        if not expected:
            try:
                self.table.sample(1, beta=0.4)
            except TableEmptyError:
                return
            raise Difference("a draw from a table without drawable steps")
        self._check_draws(expected)

    def _check_rows(self) -> None:
        """Check the stored rows, and learn the keys and the evictions of several servers."""
        parts = list(self.table.rows())
        if not parts or not sum(len(part.row_keys) for part in parts):
            expect(not self.oracle.live, "rows were lost")
            self.oracle.live = set()
            return
        read = joined_rows(parts)
        by_number = {int(row.values[NUMBER]): row for row in self.oracle.rows}
        rows = [by_number[number] for number in read[NUMBER].tolist()]
        keys = read.row_keys.tolist()
        expect(set(rows) <= self.oracle.live, "a row came back")
        if not self.has_own_keys:
            expect(keys == list(range(len(self.oracle.rows)))[-len(keys) :], "other keys than those of the newest rows")
            expect(len(keys) == min(self.oracle.written_since_reset, self.story.capacity), "rows were lost")
        elif self.oracle.written_since_reset <= self.story.capacity // 3:
            expect(set(rows) == self.oracle.live, "rows were lost")
        self.oracle.live = set(rows)
        for row, key in zip(rows, keys, strict=True):
            row.key = key
        for name, column in self.oracle.stored.items():
            same(read[name], np.stack([row.values[name] for row in rows]), name)
            expect(read[name].dtype == column.dtype, "a dtype", name)
        drawable = {row for row, priority in zip(rows, read.priorities.tolist(), strict=True) if priority == priority}
        wrong = drawable ^ set(self.oracle.drawable().values())
        expect(not wrong, "other rows can be drawn", [(row.key, row.index, row in drawable) for row in wrong])

    def _check_stats(self) -> None:
        steps = self.table.stats().steps
        assert steps is not None
        counted = StepStats(*self.oracle.counted)
        # How many were lost depends on when the server was restarted.
        expect(replace(steps, lost=0) == counted, "statistics", steps, counted)

    def _check_draws(self, expected: Mapping[int, Row]) -> None:
        shares = self._probabilities(expected)
        least = min(shares.values())
        seen: set[int] = set()
        most = min(4000, Bounds.max_rows_per_call // self.oracle.most_rows)
        size = int(2 / least) + 1
        for batch in self._batches(min(most, size)):
            expect(set(batch.row_keys.tolist()) <= expected.keys(), "a step that cannot be drawn")
            expect(batch.drawable == len(expected), "batch.drawable", batch.drawable)
            wanted = np.array([shares[key] for key in batch.row_keys.tolist()])
            same_reals(batch.probabilities, wanted, "probabilities", 1e-12)
            weights = formulas.weights(batch.probabilities, float(batch.probabilities.min()), len(expected), 0.4)
            same_reals(batch.weights, weights, "weights", 1e-5)
            self._check_values(batch, expected)
            seen |= set(batch.row_keys.tolist())
        if size <= most and not self.story.is_sharded:
            expect(seen == expected.keys(), "a step was not drawn", expected.keys() - seen)

    def _batches(self, size: int) -> Iterator[Batch]:
        yield self.table.sample(size, beta=0.4)
        with self.table.sampler(size, beta=0.4, prefetch=2, timeout_s=30) as sampler:
            yield next(sampler)
        if not self.story.is_sharded:  # asyncio clients have one server
            yield asyncio.run(self._sampled_by_asyncio(size))

    async def _sampled_by_asyncio(self, size: int) -> Batch:
        async with AsyncReplayClient(self.address) as client:
            return await (await client.table(self.table.name)).sample(size, beta=0.4)

    def _probabilities(self, expected: Mapping[int, Row]) -> dict[int, float]:
        priorities = np.array([1.0 if row.priority is None else row.priority for row in expected.values()])
        if not self.story.has_priorities:
            priorities[:] = 1.0
        keys = list(expected)
        order = np.argsort(keys)
        shares = formulas.probabilities(
            self.story.backend, dict(self.story.table.describe().parameters), priorities[order]
        )
        return dict(zip(np.array(keys)[order].tolist(), shares.tolist(), strict=True))

    def _check_values(self, batch: Batch, expected: Mapping[int, Row]) -> None:
        keys, positions = np.unique(batch.row_keys, return_inverse=True)
        items = [self.oracle.item(expected[key]) for key in keys.tolist()]
        expect(set(batch) == set(items[0]), "other columns", set(batch), set(items[0]))
        for name, values in batch.items():
            wanted = np.stack([item[name] for item in items])[positions]
            same(values, wanted, name)
        self.rows += len(positions)


def same(found: NDArray[Any], wanted: NDArray[Any], name: str) -> None:
    """Compare arrays byte by byte."""
    kinds = [(values.dtype, values.shape) for values in (found, wanted)]
    expect(kinds[0] == kinds[1], f"dtype and shape of {name}", *kinds)
    if np.ascontiguousarray(found).tobytes() != np.ascontiguousarray(wanted).tobytes():
        first = next(place for place in range(len(found)) if found[place].tobytes() != wanted[place].tobytes())
        raise Difference(f"{name} at {first}: {found[first]} instead of {wanted[first]}")


def same_reals(found: NDArray[Any], wanted: NDArray[Any], name: str, tolerance: float) -> None:
    """Compare arrays of computed numbers."""
    close = np.isclose(found, wanted, rtol=tolerance, atol=0.0)
    expect(bool(close.all()), name, found[~close], wanted[~close])
