"""Repeated power losses at any moment: the recovered table is intact and in a state that once existed."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_proto.framing import Array
from replay_proto.rate_limit import RateLimit
from replay_proto.schema import Column, Schema
from replay_proto.steps import Next, Stack, Steps, Transitions
from replay_server.backends import BACKENDS
from replay_server.backends.index import DEAD_PRIORITY
from replay_server.errors import RequestError, StoppedError
from replay_server.storage.power_loss.row_checksums import RowChecksums
from replay_server.storage.rings import MutableRing, Ring
from replay_server.storage.runs import GOES_ON, TERMINATED, Runs, ends_of, steps_of
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import DamagedTableError, TableDirectory
from replay_server.table.draws import Draw, DrawMode
from replay_server.table.gates import LimiterGate
from replay_server.table.table import NewRows, Table, WriterStamp

from tests.support.examples import examples
from tests.support.inserting import insert_all
from tests.support.invariants import check_table
from tests.support.power import copy_of, damage_pages, mixture, write_files
from tests.support.rows import WHOLE, columns_of, values_in
from tests.support.step_oracle import Oracle, Run, runs_of

WRITERS = [bytes([number + 1]) * 16 for number in range(4)]
CAPACITY = 1500
"""Number of rows that fill a few pages of each column."""
LOSSES = 12
MOST_ROWS = 60


def live_values(table: Table) -> dict[int, int]:
    """Values of the live rows by key, after checking that the rows are intact."""
    keys = np.arange(table.oldest, table.inserted)
    out: dict[str, Array] = dict(columns_of(np.zeros(len(keys), np.int64)))
    table.directory.rows.gather(keys, out)
    values = values_in(b"".join(column.tobytes() for column in out.values()))
    return dict(zip(keys.tolist(), values.tolist(), strict=True))


class Life:
    """A table that is used, synced and loses power, and its expected content."""

    steps: Steps | None = None
    mutable: Mapping[str, Column] = {}
    parameters: Mapping[str, float] = {}

    def __init__(self, folder: Path, seed: int, backend: str = "sum_tree", capacity: int = CAPACITY) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        schema = Schema({**WHOLE, **self.mutable}) if self.mutable else WHOLE
        config = TableConfig("table", schema, capacity, backend, dict(self.parameters), steps=self.steps)
        self.table = Table(TableDirectory.create(folder, config, checked=True))
        self.value_of: dict[int, int] = {}
        self.next_value = 0
        self.sent: dict[bytes, list[range]] = {writer: [] for writer in WRITERS}
        """Keys of every insert of a writer that is not lost."""
        self.synced = copy_of(folder / "table")
        self.synced_inserted = 0

    def insert(self) -> None:
        count = self.random.randint(1, MOST_ROWS if self.table.config.slack >= MOST_ROWS else self.table.config.slack)
        values = self.next_value + np.arange(count)
        self.next_value += count
        writer = self.random.choice([*WRITERS, None])
        stamp = None if writer is None else WriterStamp(writer, len(self.sent[writer]) + 1)
        columns = {**columns_of(values), **self.mutable_values(values)}
        keys = self.table.insert(NewRows(columns, count, runs=self.runs(count)), stamp)
        self.value_of.update(zip(keys, values.tolist(), strict=True))
        if writer is not None:
            self.sent[writer].append(keys)

    def runs(self, row_count: int) -> Runs | None:
        """Where the rows of an insert come from."""
        return None

    def mutable_values(self, values: NDArray[np.int64]) -> dict[str, Array]:
        """Values of the mutable columns of new rows."""
        return {}

    def use(self, steps: int) -> None:
        for _ in range(steps):
            self.insert()
            if self.random.random() < 0.2:
                keys = np.array(self.random.choices(range(self.table.oldest, self.table.inserted), k=20))
                self.table.update(keys, np.full(20, self.random.expovariate(1)))
            if self.random.random() < 0.01:
                self.table.reset()

    def sync(self) -> None:
        directory = self.table.directory
        directory.sync(directory.sync_point())
        self.synced, self.synced_inserted = copy_of(directory.folder), self.table.inserted

    def lose_power(self, newest_share: float) -> None:
        """Set each page on disk to its content at the last sync, now, or at a moment in between."""
        versions = [self.synced, copy_of(self.table.directory.folder)]
        if self.random.random() < 0.5:
            self.use(self.random.randrange(20))
            versions.append(copy_of(self.table.directory.folder))
        if self.random.random() < 0.3:
            # During a sync: rows are on disk, but the sync point only partially.
            directory = self.table.directory
            before = copy_of(directory.folder)
            directory.sync(directory.sync_point())
            torn = mixture(self.random, [before["synced.bin"], copy_of(directory.folder)["synced.bin"]], newest_share)
            self.use(self.random.randrange(20))
            versions = [{**before, "synced.bin": torn}, {**copy_of(directory.folder), "synced.bin": torn}]
        before_oldest, before_inserted, lost = self.table.oldest, self.table.inserted, self.table.directory.lost
        self.table.close()
        left = {name: mixture(self.random, [each[name] for each in versions], newest_share) for name in self.synced}
        write_files(self.folder / "table", left)
        self.table = Table(TableDirectory.open(self.folder / "table", may_be_torn=True))
        self.audit(before_oldest, before_inserted, self.table.directory.lost - lost, newest_share)
        # Without another sync, which is the server's task.
        self.synced, self.synced_inserted = copy_of(self.folder / "table"), self.table.inserted

    def audit(self, oldest: int, inserted: int, reported: int, newest_share: float) -> None:
        table = self.table
        check_table(table)
        assert self.synced_inserted <= table.inserted <= inserted
        found = live_values(table)
        assert found == {key: self.value_of[key] for key in found}
        missing = [key for key in range(oldest, inserted) if key not in found]
        # Rows that overwrote those right after the sync point do not show what was inserted in between.
        if newest_share == 1 and inserted - self.synced_inserted <= table.config.slots:
            assert not missing, f"{missing[:5]} are lost without a reason"
            assert table.inserted == inserted
        # A header from before a row's insert does not count that row.
        assert reported <= len(missing) + table.config.slots
        if table.inserted == inserted:
            assert reported >= len(missing) - table.config.slots
        for writer, keys in self.sent.items():
            kept = [each for each in keys if each.stop <= table.inserted]
            assert all(each.start >= table.inserted for each in keys[len(kept) :]), "an insert was cut in two"
            if table.size == 0:
                # Keys continue after a reset, but inserts before it may be forgotten, because their rows are gone.
                kept = kept[: table.directory.writers.last_sequence(writer)]
            self.sent[writer] = kept
            for sequence in range(max(1, len(kept) - 10), len(kept) + 1):
                again = table.insert(NewRows(columns_of(np.zeros(1, np.int64)), 1), WriterStamp(writer, sequence))
                assert again == kept[sequence - 1], "a repeat got other keys"
            if kept:
                with pytest.raises(RequestError, match="expected"):
                    table.insert(NewRows(columns_of(np.zeros(1, np.int64)), 1), WriterStamp(writer, len(kept) + 2))
        assert table.inserted <= inserted, "a repeat was applied"
        self.value_of = {key: value for key, value in self.value_of.items() if key < table.inserted}


class LifeOfSteps(Life):
    """The same with a table of steps."""

    steps = Steps.of({**WHOLE, "stack": Stack("value", 3), "next": Next("value")}, Transitions(n_step=2))

    def __init__(self, folder: Path, seed: int, backend: str = "sum_tree", capacity: int = CAPACITY) -> None:
        self.next_steps = dict.fromkeys(range(1, 9), (0, 0))
        """Episode and step of each stream."""
        super().__init__(folder, seed, backend, capacity)

    def runs(self, row_count: int) -> Runs:
        runs: list[Run] = []
        while row_count:
            stream, rows = self.random.choice(list(self.next_steps)), self.random.randint(1, min(20, row_count))
            episode, step = self.next_steps[stream]
            end = self.random.choice([GOES_ON, GOES_ON, TERMINATED]) if step + rows > 1 else GOES_ON
            runs.append((stream, episode, step, rows, end))
            self.next_steps[stream] = (episode, step + rows) if end == GOES_ON else (episode + 1, 0)
            row_count -= rows
        return runs_of(*runs)

    def audit(self, oldest: int, inserted: int, reported: int, newest_share: float) -> None:
        """Also check that just the rows with a complete window are drawable, each with the oracle's window."""
        super().audit(oldest, inserted, reported, newest_share)
        table = self.table
        keys = np.arange(table.oldest, table.inserted)
        links = table.directory.rows.links(keys)
        oracle = Oracle(table._items._shape)  # type: ignore[attr-defined]
        for (stream, episode, _), step, end in zip(links.tolist(), steps_of(links), ends_of(links), strict=True):
            oracle.insert((stream, episode, int(step), 1, int(end)))
        drawable = np.flatnonzero(table.directory.priorities[keys % table.config.slots] != DEAD_PRIORITY)
        assert set(drawable.tolist()) == oracle.drawable
        for place in drawable.tolist():
            expected, found = oracle.window(place), table._items.windows(keys[[place]])
            assert expected is not None
            assert found is not None
            assert (found.keys - table.oldest).tolist() == [*expected[0], *expected[1]]


class LifeOfUpdates(Life):
    """The same with mutable columns. Their values are a number per row, which increases with each update."""

    mutable: Mapping[str, Column] = {
        "state": Column("float32", 200, mutable=True),
        "count": Column("int64", mutable=True),
        "flag": Column("uint8", mutable=True),
    }

    def __init__(self, folder: Path, seed: int, backend: str = "sum_tree", capacity: int = CAPACITY) -> None:
        self.stored: dict[int, list[int]] = {}
        """The numbers that each row may have after a power loss: that of the last sync, and later ones."""
        super().__init__(folder, seed, backend, capacity)

    def mutable_values(self, values: NDArray[np.int64]) -> dict[str, Array]:
        numbers = np.asarray(values, np.int64)
        state = np.repeat(numbers[:, None], 200, axis=1).astype(np.float32)
        return {"state": state, "count": numbers, "flag": (numbers % 251).astype(np.uint8)}

    def insert(self) -> None:
        first = self.table.inserted
        super().insert()
        for key in range(first, self.table.inserted):
            self.stored[key] = [self.value_of[key]]

    def use(self, steps: int) -> None:
        for _ in range(steps):
            super().use(1)
            live = range(self.table.oldest, self.table.inserted)
            if not live:
                continue
            # Some rows again and again: they have to wait for the next sync.
            wanted = [*self.random.choices(live, k=10), *live[len(live) // 2 :][:20], self.table.oldest - 1]
            keys = np.array([key for key in wanted if self.table.directory.rows.may_update(np.array([key]))])
            if not len(keys):
                continue
            self.next_value += len(keys)
            numbers = np.arange(self.next_value - len(keys), self.next_value)
            values = self.mutable_values(numbers)
            # Columns that an update leaves out keep their values.
            self.table.update_rows(keys, values)
            self.table.update_rows(keys[:0], {"count": values["count"][:0]})
            for key, number in zip(keys.tolist(), numbers.tolist(), strict=True):
                if key in live:
                    self.stored[key].append(number)

    def sync(self) -> None:
        super().sync()
        self.stored = {key: numbers[-1:] for key, numbers in self.stored.items()}

    def audit(self, oldest: int, inserted: int, reported: int, newest_share: float) -> None:
        """Also check that each row has the numbers of one update, which is the last one before the sync or later."""
        super().audit(oldest, inserted, reported, newest_share)
        keys = np.arange(self.table.oldest, self.table.inserted)
        found = self.mutable_values(np.zeros(len(keys), np.int64))
        self.table.directory.rows.gather(keys, found)
        for key, number in zip(keys.tolist(), found["count"].tolist(), strict=True):
            assert number in self.stored[key]
        for name, values in self.mutable_values(found["count"]).items():  # type: ignore[arg-type]
            np.testing.assert_array_equal(found[name], values)
        self.stored = dict(zip(keys.tolist(), ([number] for number in found["count"].tolist()), strict=True))


class LifeOfLimits(Life):
    """The same with rows that can be drawn once."""

    parameters: Mapping[str, float] = {"max_times_sampled": 1}

    def __init__(self, folder: Path, seed: int, backend: str = "sum_tree", capacity: int = CAPACITY) -> None:
        self.drawn: set[int] = set()
        self.stored: set[int] = set()
        """The drawn keys as of the last sync."""
        super().__init__(folder, seed, backend, capacity)

    def use(self, steps: int) -> None:
        for _ in range(steps):
            super().use(1)
            gate = self.table.gate
            assert isinstance(gate, LimiterGate)
            count = gate.grant(self.random.randint(1, 20))
            if count:
                draw = Draw(count, beta=1.0, mode=DrawMode.INDEPENDENT)
                batches = self.table.draw_at(draw, self.table.draws.choose_points(draw, 1))
                gate.count_drawn(count)
                self.table.hand_out(batches)
                keys = set(batches[0].keys.tolist())
                assert not keys & self.drawn
                self.drawn |= keys

    def sync(self) -> None:
        super().sync()
        self.stored = set(self.drawn)

    def audit(self, oldest: int, inserted: int, reported: int, newest_share: float) -> None:
        """Also check that rows drawn before the last sync are not drawn again, and others from before it still are."""
        synced = self.synced_inserted
        super().audit(oldest, inserted, reported, newest_share)
        keys = np.arange(self.table.oldest, self.table.inserted)
        priorities = self.table.directory.priorities[keys % self.table.config.slots]
        drawable = set(keys[priorities != DEAD_PRIORITY].tolist())
        assert not drawable & self.stored
        assert {key for key in keys.tolist() if oldest <= key < synced} - drawable <= self.drawn
        self.drawn = set(keys.tolist()) - drawable
        self.stored = set(self.drawn)


@pytest.mark.parametrize(
    ("kind", "backend", "capacity", "newest_share"),
    [
        *((Life, "sum_tree", 1500, share) for share in (0.0, 0.5, 0.95, 0.999, 1)),
        *((Life, "rank", 4000, 0.5), (Life, "uniform", 100, 0.95)),
        *((LifeOfUpdates, "sum_tree", 1500, share) for share in (0.5, 0.95)),
        *((LifeOfLimits, backend, 1500, 0.7) for backend in BACKENDS),
        *((LifeOfSteps, "sum_tree", 1000, 0.5), (LifeOfSteps, "rank", 1000, 0.95), (LifeOfSteps, "uniform", 300, 1)),
    ],
)
def test_what_comes_back_is_whole_and_has_happened(
    tmp_path: Path, kind: type[Life], backend: str, capacity: int, newest_share: float
) -> None:
    life = kind(tmp_path, seed=capacity, backend=backend, capacity=capacity)
    most = capacity // 50
    for _ in range(examples(LOSSES)):
        for _ in range(life.random.randrange(4)):
            life.use(life.random.randrange(most))
            life.sync()
        life.use(life.random.randrange(max(1, most // 4)))
        life.lose_power(newest_share)
    assert life.next_value > capacity


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_a_sync_invalidates_the_values_before_an_update(tmp_path: Path, is_opened_again: bool) -> None:
    """Also if the server that made the update was killed; a later row may overwrite the newer values."""
    life = LifeOfUpdates(tmp_path, seed=1)
    life.insert()
    life.sync()
    numbers = np.arange(life.table.inserted) + 1000
    life.table.update_rows(np.arange(life.table.inserted), life.mutable_values(numbers))
    if is_opened_again:
        life.table.close()
        life.table = Table(TableDirectory.open(tmp_path / "table"))
    life.sync()
    places = life.table.directory.rows.rings()[3]
    assert isinstance(places, MutableRing)
    places.places[1 : 2 * len(numbers) : 2] = 0  # version 1 of each row
    life.table.close()
    life.table = Table(TableDirectory.open(tmp_path / "table", may_be_torn=True))
    assert life.table.size == 0


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    """A table with checksums and 5000 rows, synced."""
    made = Table(TableDirectory.create(tmp_path, TableConfig("table", WHOLE, capacity=4000), checked=True))
    for first in range(0, 5000, 50):
        made.insert(NewRows(columns_of(np.arange(first, first + 50)), 50), None)
    made.directory.sync(made.directory.sync_point())
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(20))
def test_pages_that_are_zeros_or_of_elsewhere_are_never_served(table: Table, tmp_path: Path, seed: int) -> None:
    """Worse than a power loss: synced data is also damaged."""
    folder = tmp_path / "copy" / "table"
    write_files(folder, copy_of(table.directory.folder))
    pages = random.Random(seed)
    for name in pages.sample(["column-000.bin", "column-001.bin", "column-002.bin", "checksums.bin", "header.bin"], 2):
        damage_pages(folder / name, pages, 2)
    damaged = Table(TableDirectory.open(folder, may_be_torn=True))
    check_table(damaged)
    found = live_values(damaged)
    assert found == {key: key for key in found}
    assert len(found) + damaged.directory.lost == 4000 or damaged.oldest < 1000
    assert damaged.size
    drawn = damaged.live_keys(np.arange(5000))
    assert drawn.tolist() == list(found)
    damaged.close()


def values_of(table: Table) -> list[Array]:
    """Return the stored columns and the links, each as ``dtype[slots, elements]``."""
    return [ring.values for ring in table.directory.rows.rings() if isinstance(ring, Ring)]


@pytest.mark.parametrize("column", [*range(4), "link"])
def test_a_bit_that_turned_over_shows(table: Table, column: int | str) -> None:
    checksums = table.directory.rows.checksums
    assert isinstance(checksums, RowChecksums)
    values = values_of(table)[3 if column == "link" else int(column)]
    assert checksums.whole(table.oldest, table.size).all()
    values.view(np.uint8)[2000 % table.config.slots, -1] ^= 16
    assert np.flatnonzero(~checksums.whole(1000, 4000)).tolist() == [1000]


def test_a_row_does_not_verify_under_another_key(table: Table) -> None:
    checksums = table.directory.rows.checksums
    assert isinstance(checksums, RowChecksums)
    slots = table.config.slots
    assert not checksums.whole(table.oldest + slots, 100).any()
    assert not checksums.whole(table.oldest - slots, 100).any()


def test_a_sync_point_that_is_nowhere_whole_is_named(table: Table, tmp_path: Path) -> None:
    folder = tmp_path / "copy" / "table"
    write_files(
        folder,
        {**copy_of(table.directory.folder), "synced.bin": bytes(len(copy_of(table.directory.folder)["synced.bin"]))},
    )
    with pytest.raises(DamagedTableError, match=r"synced\.bin"):
        TableDirectory.open(folder, may_be_torn=True)


def test_rows_that_were_lost_do_not_make_a_limiter_wait(tmp_path: Path) -> None:
    """Samples owed for lost rows are no longer owed."""
    limit = RateLimit.of(1, 2.0, 100.0)
    config = TableConfig("table", WHOLE, capacity=1000, rate_limit=limit)
    table = Table(TableDirectory.create(tmp_path, config, checked=True))
    insert_all(table, NewRows(columns_of(np.arange(500)), 500))
    gate = table.gate
    assert gate is not None
    gate.count_drawn(gate.grant(900))
    table.directory.sync(table.directory.sync_point())
    rows = values_of(table)[0]
    rows[100] += 1
    table.close()
    table = Table(TableDirectory.open(tmp_path / "table", may_be_torn=True))
    assert (table.oldest, table.inserted, table.directory.lost) == (101, 500, 101)
    assert table.gate is not None
    assert table.gate.grant(1000) > 0
    table.close()


def test_rows_that_the_header_does_not_know_of_do_not_make_a_limiter_wait(tmp_path: Path) -> None:
    """The header on disk may be older than the rows, and lack draws since then that allowed more inserts."""
    limit = RateLimit.of(1, 2.0, 100.0)
    config = TableConfig("table", WHOLE, capacity=1000, rate_limit=limit)
    table = Table(TableDirectory.create(tmp_path, config, checked=True))
    gate = table.gate
    assert gate is not None
    folder = table.directory.folder
    older = copy_of(folder)["header.bin"]
    for first in range(0, 500, 25):
        table.insert(NewRows(columns_of(np.arange(first, first + 25)), 25), None)
        gate.count_drawn(gate.grant(50))
    table.close()
    (folder / "header.bin").write_bytes(older)
    table = Table(TableDirectory.open(folder, may_be_torn=True))
    assert (table.inserted, table.directory.lost) == (500, 0)
    assert isinstance(table.gate, LimiterGate)
    assert table.gate.difference == 102.0
    assert table.gate.grant(2) == 2
    assert table.gate.insert_allowed(1)
    table.close()


def test_a_queue_comes_back_from_its_oldest_whole_row_on(tmp_path: Path) -> None:
    config = TableConfig("table", WHOLE, capacity=100, backend="fifo", parameters={"max_times_sampled": 2})
    table = Table(TableDirectory.create(tmp_path, config, checked=True))
    table.insert(NewRows(columns_of(np.arange(50)), 50), None)
    table.directory.sync(table.directory.sync_point())
    assert table.config.is_queue
    values_of(table)[0][10] += 1
    table.close()
    table = Table(TableDirectory.open(tmp_path / "table", may_be_torn=True))
    assert list(live_values(table)) == list(range(11, 50))
    assert table.gate is not None
    assert table.gate.grant(1000) == 78
    table.close()


def test_a_table_gets_checksums_later(tmp_path: Path) -> None:
    table = Table(TableDirectory.create(tmp_path, TableConfig("table", WHOLE, capacity=100)))
    insert_all(table, NewRows(columns_of(np.arange(150)), 150))
    table.close()
    # Left behind by an interrupted attempt.
    (tmp_path / "table" / "checksums.bin").write_bytes(b"half")
    directory = TableDirectory.open(tmp_path / "table")
    assert not directory.is_checked
    directory.add_checksums()
    directory.close()
    assert json.loads((tmp_path / "table" / "manifest.json").read_text("utf-8"))["format_version"] == 4
    table = Table(TableDirectory.open(tmp_path / "table", may_be_torn=True))
    assert live_values(table) == {key: key for key in range(50, 150)}
    assert table.directory.lost == 0
    table.close()


def test_a_recovery_that_is_stopped_changes_nothing(tmp_path: Path) -> None:
    table = Table(TableDirectory.create(tmp_path, TableConfig("table", WHOLE, capacity=100), checked=True))
    table.insert(NewRows(columns_of(np.arange(50)), 50), None)
    table.close()
    before, stopped = copy_of(tmp_path / "table"), threading.Event()
    stopped.set()
    with pytest.raises(StoppedError, match="verifying the rows of table table after a power loss"):
        TableDirectory.open(tmp_path / "table", may_be_torn=True, stopped=stopped)
    assert copy_of(tmp_path / "table") == before
    table = Table(TableDirectory.open(tmp_path / "table", may_be_torn=True))
    assert table.size == 50
    table.close()
