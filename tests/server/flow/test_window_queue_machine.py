"""A queue of windows compared with a list, under random operations including restarts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from replay_proto.errors import FieldError
from replay_proto.steps import Discount, Item, Sequences, Stack, Steps, Transitions
from replay_server.errors import RequestError
from replay_server.storage.delivery_log import DELIVERY_LOG_BYTES, ReaderStamp
from replay_server.storage.format import DELIVERIES_FILE
from replay_server.storage.runs import GOES_ON
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.draws import Draw, DrawnBatch
from replay_server.table.table import NewRows, Table
from replay_server.table.window_queue import WindowQueue

from tests.support.drawing import draw_batch, draw_batch_again
from tests.support.examples import examples
from tests.support.invariants import check_table
from tests.support.reader_oracle import READERS, Readers
from tests.support.rows import WHOLE, columns_of
from tests.support.step_oracle import ENDS, Oracle, Run, runs_of

ITEMS: list[Item] = [
    Transitions(1),
    Transitions(3),
    Sequences(4, burn_in=2, period=2),
    Sequences(3, period=3),
    Sequences(5, period=1),
]
COUNTS = st.integers(1, 20)


def config_of(item: Item, capacity: int, times: int = 1, stack: int = 1) -> TableConfig:
    steps = Steps.of({**WHOLE, "stacked": Stack("payload", stack), "discount": Discount()}, item)
    return TableConfig("queue", steps.schema, capacity, "fifo", {"max_times_sampled": times}, steps=steps)


class Queueing(RuleBasedStateMachine):
    """Inserts, grants, draws, repeated draws, resets and restarts."""

    @initialize(
        item=st.sampled_from(ITEMS), stack=st.integers(1, 3), capacity=st.integers(9, 60), times=st.integers(1, 3)
    )
    def make(self, item: Item, stack: int, capacity: int, times: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        config = config_of(item, capacity, times, stack)
        assert config.steps is not None
        self.oracle = Oracle(config.steps.window)
        self.times, self.capacity, self.slots = times, capacity, config.slots
        self.table = Table(TableDirectory.create(Path(self.folder.name), config))
        self.at: dict[int, tuple[int, int]] = {}
        self.rows_of: dict[int, list[int]] = {}  # by anchor
        # The anchors of complete windows, each as often as it is still to be delivered.
        self.deliveries: list[int] = []
        self.readers = Readers()
        self.granted = 0

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.table.close()
            self.folder.cleanup()

    @property
    def gate(self) -> WindowQueue:
        assert isinstance(self.table.gate, WindowQueue)
        return self.table.gate

    @property
    def inserted(self) -> int:
        return len(self.oracle.rows)

    def window(self, anchor: int) -> list[int]:
        """The keys of a window's rows."""
        found = self.oracle.window(anchor)
        assert found
        return [key for part in found for key in part]

    def needed(self, deliveries: list[int]) -> int:
        """The oldest row of these windows; the next row if there are none."""
        return min((min(self.window(anchor)) for anchor in set(deliveries)), default=self.inserted)

    @rule(
        parts=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.sampled_from(ENDS)), min_size=1, max_size=3)
    )
    def insert(self, parts: list[tuple[int, int, int]]) -> None:
        count = sum(rows for _, rows, _ in parts)
        nobodys = self.needed(self.deliveries[self.granted :]) + self.capacity
        fits = self.readers.kept(self.needed(self.deliveries)) + self.slots
        assert self.gate.insert_allowed(count) == (self.inserted + count <= min(nobodys, fits))
        if not self.gate.insert_allowed(count):
            return
        runs: list[Run] = []
        for stream, rows, end in parts:
            episode, step = self.at.get(stream, (0, 0))
            runs.append((stream, episode, step, rows, end))
            self.at[stream] = (episode, step + rows) if end == GOES_ON else (episode + 1, 0)
        first = self.inserted
        keys = self.table.insert(
            NewRows(columns_of(np.arange(first, first + count)), count, None, runs_of(*runs)), None
        )
        assert list(keys) == list(range(first, first + count))
        before = self.oracle.drawable
        for run in runs:
            self.oracle.insert(run)
        complete = sorted(self.oracle.drawable - before, key=lambda anchor: (max(self.window(anchor)), anchor))
        self.rows_of |= {anchor: self.window(anchor) for anchor in complete}
        self.deliveries += np.repeat(complete, self.times).astype(int).tolist()
        self.evict()

    def evict(self) -> None:
        """Rows go when as many as the capacity came after them, except for those of windows to be delivered."""
        needed = self.readers.kept(self.needed(self.deliveries))
        self.oracle.oldest = max(self.oracle.oldest, min(self.inserted - self.capacity, needed))

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

    def oldest_row(self, anchors: list[int]) -> int | None:
        """The oldest row of some windows; None if it was removed."""
        oldest = min(min(self.rows_of[anchor]) for anchor in anchors)
        return oldest if oldest >= self.oracle.oldest else None

    @rule(reader=READERS, behind=st.integers(0, 2))
    def a_reader_is_back(self, reader: bytes, behind: int) -> None:
        self.arrives(self.readers.next_stamp(reader, behind))

    def arrives(self, stamp: ReaderStamp) -> None:
        keeps_less = self.readers.arrived(stamp)
        assert self.table.reader_received(stamp.reader_id, stamp.received) == keeps_less
        if keeps_less:
            self.evict()

    @rule(
        reader=READERS,
        rows=st.integers(1, 9),
        end=st.sampled_from(ENDS),
        is_back=st.booleans(),
        forgets=st.booleans(),
    )
    def others_are_back_first(self, reader: bytes, rows: int, end: int, is_back: bool, forgets: bool) -> None:
        """They fill the ring after a restart, and go on when the reader is back or given up."""
        self.insert([(0, 9, ENDS[-1])])
        self.granted += self.gate.grant(1)
        assume(self.granted)
        self.deliver(1, self.readers.next_stamp(reader, 0))
        self.restart()
        for _ in range(2):
            for _ in range(2 * self.slots // rows):
                self.insert([(0, rows, end)])
                self.granted = self.gate.grant(len(self.deliveries))
                if self.granted:
                    self.deliver(self.granted)
            if forgets:
                self.restart(forgets=True)
            elif is_back:
                self.a_reader_is_back(reader, 0)
            else:
                self.readers_are_given_up()

    @rule()
    def readers_are_given_up(self) -> None:
        self.table.give_up_readers()
        self.readers.expected.clear()
        self.evict()

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

    @precondition(lambda self: self.deliveries and not self.granted)
    @rule(count=st.integers(1, 4), restarts=st.booleans())
    def take_a_few(self, count: int, restarts: bool) -> None:
        self.granted = self.gate.grant(min(count, len(self.deliveries)))
        self.deliver(self.granted)
        if restarts:
            self.restart()

    def deliver(self, count: int, stamp: ReaderStamp | None = None) -> None:
        if stamp is not None:
            self.arrives(stamp)
        batch = draw_batch(self.table, Draw(count, beta=1.0), stamp)
        expected, self.deliveries = self.deliveries[:count], self.deliveries[count:]
        if stamp is not None:
            self.readers.drawn(stamp, expected)
        self.check(batch, expected)
        self.granted -= count
        self.evict()

    def check(self, batch: DrawnBatch, expected: list[int]) -> None:
        assert batch.keys.tolist() == expected
        assert batch.windows is not None
        rows = [key for anchor in expected for key in self.rows_of[anchor]]
        assert batch.windows.keys.tolist() == rows
        found = {
            name: np.empty((len(rows), *column.shape), column.dtype)
            for name, column in self.table.config.schema.items()
        }
        self.table.directory.rows.gather(np.array(rows), found)
        for name, values in columns_of(np.array(rows)).items():
            np.testing.assert_array_equal(found[name], values)
        assert batch.weights.tolist() == [1.0] * len(expected)

    @rule(rows=st.integers(1, 9))
    def a_draw_that_waits_fills_the_ring(self, rows: int) -> None:
        for _ in range(2 * self.slots // rows):
            self.grant(len(self.deliveries))
            self.insert([(0, rows, GOES_ON)])
        assert not self.deliveries or self.needed(self.deliveries) + self.slots - self.inserted < rows

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.granted))
        self.gate.give_back(count)
        self.granted -= count

    @rule()
    def reset(self) -> None:
        assert self.table.reset() == self.inserted - self.oracle.oldest
        self.oracle.oldest = self.inserted
        self.deliveries, self.granted = [], 0
        self.readers.expected.clear()

    @rule(forgets=st.booleans())
    def restart(self, forgets: bool = False) -> None:
        """Restart; forget all draws if there were too many others meanwhile."""
        folder = self.table.directory.folder
        self.table.close()
        if forgets:
            (folder / DELIVERIES_FILE).write_bytes(bytes(DELIVERY_LOG_BYTES))
            self.readers = Readers()
        self.table = Table(TableDirectory.open(folder))
        self.readers.restarted(self.oldest_row)
        self.granted = 0
        self.evict()

    @rule()
    def a_waiting_draw_leaves_room_for_an_insert(self) -> None:
        wanted = len(self.deliveries) + 1
        assume(not self.granted and not self.readers.expected and is_accepted(self.table, wanted))
        granted = self.gate.grant(wanted)
        assert granted == wanted - 1
        assert self.gate.insert_allowed(min(self.capacity, self.table.config.slack))
        self.gate.give_back(granted)

    @invariant()
    def what_is_live_is_what_is_left(self) -> None:
        if not hasattr(self, "table"):
            return
        check_table(self.table)
        assert (self.table.oldest, self.table.inserted) == (self.oracle.oldest, self.inserted)
        assert self.table.drawable == len(set(self.deliveries))
        counts = self.table.step_counts
        assert counts is not None
        assert counts.drawable == len(set(self.deliveries))


def test_a_queue_of_windows_does_what_a_list_does() -> None:
    case = Queueing.TestCase
    case.settings = settings(max_examples=examples(25), stateful_step_count=50, deadline=None)
    case().runTest()


@pytest.mark.parametrize("streams", [1, 4])
@pytest.mark.parametrize("steps", [1, 2, 50])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("item", ITEMS, ids=str)
def test_the_largest_draw_that_is_accepted_comes_to_its_end(
    tmp_path: Path, item: Item, times: int, steps: int, streams: int
) -> None:
    """However short the episodes are, and though the streams alternate."""
    table = Table(TableDirectory.create(tmp_path, config_of(item, 64, times)))
    at = [(0, 0)] * streams

    def insert() -> None:
        """Insert a row of the next stream, and the one that closes its episode."""
        stream = table.inserted % streams
        episode, step = at[stream]
        is_last = step == steps
        run = (stream, episode, step, 1, ENDS[-1] if is_last else GOES_ON)
        at[stream] = (episode + 1, 0) if is_last else (episode, step + 1)
        table.insert(NewRows(columns_of(np.arange(table.inserted, table.inserted + 1)), 1, None, runs_of(run)), None)

    gate = table.gate
    assert gate is not None
    for _ in range(40):
        if gate.insert_allowed(1):
            insert()
    for _ in range(5):
        most = next(rows for rows in range(300, 0, -1) if is_accepted(table, rows))
        granted = gate.grant(most)
        while granted < most:
            assert gate.insert_allowed(1), f"{granted} of {most} windows are complete, and no row fits"
            insert()
            granted += gate.grant(most - granted)
        draw_batch(table, Draw(most, beta=0.0))
    table.close()


def is_accepted(table: Table, rows: int) -> bool:
    assert table.gate is not None
    try:
        table.gate.check_draw(rows)
    except RequestError:
        return False
    return True


def test_numbers_of_deliveries_fit_into_a_word() -> None:
    config_of(Sequences(length=1_000), 10_000, times=16)
    with pytest.raises(FieldError, match=r"max_times_sampled: expected at most 16 with windows of this length, got 17"):
        config_of(Sequences(length=1_000), 10_000, times=17)
