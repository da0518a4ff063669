"""A queue compared with a list, under random operations including restarts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from replay_proto.schema import Column, Schema
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.draws import Draw
from replay_server.table.oldest_first import OldestFirst
from replay_server.table.table import NewRows, Table

from tests.support.drawing import draw_batch
from tests.support.examples import examples
from tests.support.invariants import check_table

COUNTS = st.integers(1, 30)


class Queueing(RuleBasedStateMachine):
    """Inserts, grants, draws, resets and restarts."""

    @initialize(capacity=st.integers(1, 80), times=st.integers(1, 3))
    def make(self, capacity: int, times: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        schema = Schema({"value": Column("int64")})
        config = TableConfig("queue", schema, capacity, "fifo", {"max_times_sampled": times})
        self.times, self.capacity = times, capacity
        self.table = Table(TableDirectory.create(Path(self.folder.name), config))
        self.deliveries: list[int] = []
        self.inserted = self.granted = 0

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.table.close()
            self.folder.cleanup()

    @property
    def gate(self) -> OldestFirst:
        assert isinstance(self.table.gate, OldestFirst)
        return self.table.gate

    @rule(count=COUNTS)
    def insert(self, count: int) -> None:
        nobodys = len(set(self.deliveries[self.granted :]))
        fits = len(set(self.deliveries)) + count <= self.table.config.slots
        allowed = self.gate.insert_allowed(count)
        assert allowed == (nobodys + count <= self.capacity and fits)
        if allowed:
            values = np.arange(self.inserted, self.inserted + count)
            assert list(self.table.insert(NewRows({"value": values}, count), None)) == values.tolist()
            self.deliveries += np.repeat(values, self.times).tolist()
            self.inserted += count

    @rule(count=COUNTS)
    def grant(self, count: int) -> None:
        granted = self.gate.grant(count)
        assert granted == min(count, len(self.deliveries) - self.granted)
        self.granted += granted

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def draw(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.granted))
        batch = draw_batch(self.table, Draw(count, beta=1.0))
        expected, self.deliveries = self.deliveries[:count], self.deliveries[count:]
        assert batch.keys.tolist() == expected
        found = {"value": np.empty(count, np.int64)}
        self.table.directory.rows.gather(batch.keys, found)
        assert found["value"].tolist() == expected
        assert batch.weights.tolist() == [1.0] * count
        self.granted -= count

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.granted))
        self.gate.give_back(count)
        self.granted -= count

    @rule()
    def reset(self) -> None:
        assert self.table.reset() == len(set(self.deliveries))
        self.deliveries, self.granted = [], 0

    @rule()
    def restart(self) -> None:
        folder = self.table.directory.folder
        self.table.close()
        self.table = Table(TableDirectory.open(folder))
        self.granted = 0

    @rule()
    def a_draw_is_never_stuck_behind_an_insert_that_is_small_enough(self) -> None:
        largest = min(self.capacity, self.table.config.slack)
        wanted = (self.capacity - 1) * self.times + 1
        assume(not self.granted)
        granted = self.gate.grant(wanted)
        assert granted == wanted or self.gate.insert_allowed(largest)
        self.gate.give_back(granted)

    @invariant()
    def what_is_live_is_what_is_left(self) -> None:
        check_table(self.table)
        left = sorted(set(self.deliveries))
        assert list(range(self.table.oldest, self.table.inserted)) == left
        assert self.table.live_keys(np.arange(self.inserted)).tolist() == left


TestQueueing = Queueing.TestCase
TestQueueing.settings = settings(max_examples=examples(25), stateful_step_count=40)
