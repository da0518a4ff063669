"""A queue compared with a list, under random operations including restarts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from replay_proto.schema import Column, Schema
from replay_server.storage.delivery_log import ReaderStamp
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.draws import Draw, DrawnBatch
from replay_server.table.oldest_first import OldestFirst
from replay_server.table.table import NewRows, Table

from tests.support.drawing import draw_batch, draw_batch_again
from tests.support.examples import examples
from tests.support.invariants import check_table
from tests.support.reader_oracle import READERS, Readers

COUNTS = st.integers(1, 30)


class Queueing(RuleBasedStateMachine):
    """Inserts, grants, draws, repeated draws, resets and restarts."""

    @initialize(capacity=st.integers(1, 80), times=st.integers(1, 3))
    def make(self, capacity: int, times: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        schema = Schema({"value": Column("int64")})
        config = TableConfig("queue", schema, capacity, "fifo", {"max_times_sampled": times})
        self.times, self.capacity = times, capacity
        self.table = Table(TableDirectory.create(Path(self.folder.name), config))
        self.deliveries: list[int] = []
        self.readers = Readers()
        self.removed = 0  # rows below this key
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
        needed = self.readers.kept(min(self.deliveries, default=self.inserted))
        fits = self.inserted + count <= needed + self.table.config.slots
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
    @rule(data=st.data(), reader=st.none() | READERS, behind=st.integers(0, 2))
    def draw(self, data: st.DataObject, reader: bytes | None, behind: int) -> None:
        stamp = None if reader is None else self.readers.next_stamp(reader, behind)
        self.deliver(data.draw(st.integers(1, self.granted)), stamp)

    def deliver(self, count: int, stamp: ReaderStamp | None) -> None:
        if stamp is not None:
            self.arrives(stamp)
        batch = draw_batch(self.table, Draw(count, beta=1.0), stamp)
        expected, self.deliveries = self.deliveries[:count], self.deliveries[count:]
        if stamp is not None:
            self.readers.drawn(stamp, expected)
        self.check(batch, expected)
        self.granted -= count

    def check(self, batch: DrawnBatch, expected: list[int]) -> None:
        assert batch.keys.tolist() == expected
        found = {"value": np.empty(len(expected), np.int64)}
        self.table.directory.rows.gather(batch.keys, found)
        assert found["value"].tolist() == expected
        assert batch.weights.tolist() == [1.0] * len(expected)

    def oldest_row(self, keys: list[int]) -> int | None:
        """The oldest row of a draw; None if it was removed or overwritten."""
        return min(keys) if min(keys) >= max(self.removed, self.inserted - self.table.config.slots) else None

    @rule(reader=READERS, behind=st.integers(0, 2))
    def a_reader_is_back(self, reader: bytes, behind: int) -> None:
        self.arrives(self.readers.next_stamp(reader, behind))

    def arrives(self, stamp: ReaderStamp) -> None:
        assert self.table.reader_received(stamp.reader_id, stamp.received) == self.readers.arrived(stamp)

    @rule(reader=READERS, rows=st.integers(1, 30), is_back=st.booleans())
    def others_are_back_first(self, reader: bytes, rows: int, is_back: bool) -> None:
        """They fill the ring after a restart, and go on when the reader is back or given up."""
        self.insert(1)
        self.grant(1)
        assume(self.granted)
        self.deliver(1, self.readers.next_stamp(reader, 0))
        self.restart()
        for _ in range(2):
            for _ in range(2 * self.table.config.slots // rows):
                self.insert(rows)
                self.grant(len(self.deliveries))
                if self.granted:
                    self.deliver(self.granted, None)
            if is_back:
                self.a_reader_is_back(reader, 0)
            else:
                self.readers_are_given_up()

    @rule()
    def readers_are_given_up(self) -> None:
        self.table.give_up_readers()
        self.readers.expected.clear()

    @precondition(lambda self: self.readers.draws)
    @rule(data=st.data())
    def draw_again(self, data: st.DataObject) -> None:
        stamp, expected = data.draw(st.sampled_from(list(self.readers.draws.items())))
        self.arrives(stamp)
        batch = draw_batch_again(self.table, Draw(len(expected), beta=1.0), stamp)
        assert (batch is None) == (self.oldest_row(expected) is None)
        if batch is not None:
            self.check(batch, expected)
        assert draw_batch_again(self.table, Draw(len(expected) + 1, beta=1.0), stamp) is None

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.granted))
        self.gate.give_back(count)
        self.granted -= count

    @rule()
    def reset(self) -> None:
        assert self.table.reset() == len(set(self.deliveries))
        self.deliveries, self.granted, self.removed = [], 0, self.inserted
        self.readers.expected.clear()

    @rule()
    def restart(self) -> None:
        folder = self.table.directory.folder
        self.table.close()
        self.table = Table(TableDirectory.open(folder))
        self.readers.restarted(self.oldest_row)
        self.granted = 0

    @rule()
    def a_draw_is_never_stuck_behind_an_insert_that_is_small_enough(self) -> None:
        largest = min(self.capacity, self.table.config.slack)
        wanted = (self.capacity - 1) * self.times + 1
        assume(not self.granted and not self.readers.expected)
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
