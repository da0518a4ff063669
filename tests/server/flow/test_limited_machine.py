"""A table with `max_times_sampled` compared with a dict of the draws that each row has left, under random operations.

The oracle is the paragraph in docs/concepts/backpressure.md: a row can be drawn so often and no more, is evicted like
any other, and is no longer drawn after a restart if it had its last draw before.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from replay_proto.rate_limit import RateLimit
from replay_proto.schema import Column, Schema
from replay_server.backends import BACKENDS
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.draws import Draw, DrawMode
from replay_server.table.gates import LimiterGate
from replay_server.table.table import NewRows, Table

from tests.support.examples import examples

COUNTS = st.integers(1, 30)


class Limited(RuleBasedStateMachine):
    """Inserts, updates, grants, draws, resets and restarts."""

    @initialize(
        capacity=st.integers(1, 60),
        times=st.integers(1, 3),
        backend=st.sampled_from(list(BACKENDS)),
        has_limit=st.booleans(),
    )
    def make(self, capacity: int, times: int, backend: str, has_limit: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        schema = Schema({"value": Column("int64")})
        limit = RateLimit(min_size=min(3, capacity)) if has_limit else None
        config = TableConfig("limited", schema, capacity, backend, {"max_times_sampled": times}, rate_limit=limit)
        self.times, self.capacity, self.least = times, capacity, limit.min_size if limit else 1
        self.table = Table(TableDirectory.create(Path(self.folder.name), config))
        self.left: dict[int, int] = {}
        self.inserted = self.granted = 0

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.table.close()
            self.folder.cleanup()

    @property
    def gate(self) -> LimiterGate:
        assert isinstance(self.table.gate, LimiterGate)
        return self.table.gate

    @property
    def drawable(self) -> list[int]:
        return [key for key, left in self.left.items() if left]

    @rule(count=COUNTS, priority=st.sampled_from([0.0, 1e-9, 1.0, 1e9]))
    def insert(self, count: int, priority: float) -> None:
        values = np.arange(self.inserted, self.inserted + count)
        self.table.insert(NewRows({"value": values}, count, np.full(count, priority)), None)
        self.left |= dict.fromkeys(values.tolist(), self.times)
        self.inserted += count
        self.left = {key: left for key, left in self.left.items() if key >= self.inserted - self.capacity}

    @rule(data=st.data(), priority=st.floats(0.0, 1e9))
    def update(self, data: st.DataObject, priority: float) -> None:
        keys = np.array(data.draw(st.lists(st.integers(-3, self.inserted + 3), min_size=1)))
        live = set(keys.tolist()) & set(self.drawable)
        updated, stale = self.table.update(keys, np.full(len(keys), priority))
        assert (updated, stale) == (len(live), sum(key not in live for key in keys.tolist()))

    @rule(count=COUNTS)
    def grant(self, count: int) -> None:
        granted = self.gate.grant(count)
        free = max(0, sum(self.left.values()) - self.granted)
        assert granted == (min(count, free) if len(self.drawable) >= self.least else 0)
        self.granted += granted

    @precondition(lambda self: self.granted and sum(self.left.values()))
    @rule(data=st.data(), mode=st.sampled_from([DrawMode.STRATIFIED, DrawMode.INDEPENDENT]))
    def draw(self, data: st.DataObject, mode: DrawMode) -> None:
        count = data.draw(st.integers(1, min(self.granted, sum(self.left.values()))))
        draw = Draw(count, beta=1.0, mode=mode)
        points = self.table.draws.choose_points(draw, 1)
        before = self.table.directory.priorities.copy()
        batches = self.table.draw_at(draw, points)
        np.testing.assert_array_equal(self.table.directory.priorities, before)
        assert self.table.draw_at(draw, points)[0].keys.tolist() == batches[0].keys.tolist()
        self.gate.count_drawn(count)
        self.table.hand_out(batches)
        self.granted -= count
        keys = batches[0].keys.tolist()
        assert len(keys) == count
        for key in keys:
            self.left[key] -= 1
        assert all(left >= 0 for left in self.left.values())

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.granted))
        self.gate.give_back(count)
        self.granted -= count

    @rule()
    def reset(self) -> None:
        assert self.table.reset() == len(self.left)
        self.left, self.granted = {}, 0

    @rule()
    def restart(self) -> None:
        folder = self.table.directory.folder
        self.table.close()
        self.table = Table(TableDirectory.open(folder))
        self.left = {key: self.times if left else 0 for key, left in self.left.items()}
        self.granted = 0

    @invariant()
    def what_can_be_drawn_has_draws_left(self) -> None:
        if not hasattr(self, "table"):
            return
        assert self.table.size == len(self.left)
        assert self.table.drawable == len(self.drawable)
        has_priority = ~np.isnan(self.table.priorities(np.array(list(self.left), np.int64), of_others=np.nan))
        assert has_priority.tolist() == [left > 0 for left in self.left.values()]
        total = sum(self.left.values())
        assert self.table.has_left(total)
        assert not self.table.has_left(total + 1)


TestLimited = Limited.TestCase
TestLimited.settings = settings(max_examples=examples(40), stateful_step_count=40)
