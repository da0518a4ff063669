"""A table compared with a plain Python model under random operations, checking all invariants after each.

It runs in process to allow thousands of small operations; other tests use gRPC.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from replay_proto.errors import FieldError
from replay_server.backends import BACKENDS
from replay_server.errors import RequestError
from replay_server.rpc.handlers.tables import describe
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.draws import Draw, DrawMode, WeightNorm
from replay_server.table.table import NewRows, Table, WriterStamp

from tests.support import formulas
from tests.support.drawing import draw_batch
from tests.support.examples import examples
from tests.support.frame_stub import TableFiles
from tests.support.invariants import check_table
from tests.support.rows import WHOLE, columns_of, rows_of, values_in
from tests.support.step_oracle import plain_run

PRIORITIES = st.one_of(
    st.sampled_from([0.0, 1.0, 1.0, 2.5, 1e-9, 1e-30]), st.floats(0, 1e6).map(lambda x: x if x > 1e-30 else 0.0)
)
WRITERS = [bytes([number]) * 16 for number in range(3)]


@dataclass
class ModelRow:
    """Expected content of a row."""

    value: int
    priority: float
    link: tuple[int, int]


class TableMachine(RuleBasedStateMachine):
    """Inserts, updates, draws, reads, resets and restarts, against a dict of live rows by key."""

    backend: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.parent = Path(tempfile.mkdtemp(prefix="table-machine-"))
        self.rows: dict[int, ModelRow] = {}
        self.inserted = 0
        self.next_value = 0
        self.sequences = dict.fromkeys(WRITERS, 0)
        self.answers: dict[tuple[bytes, int], range] = {}
        self.new: set[int] | None = None

    @initialize(
        capacity=st.sampled_from([1, 2, 3, 7, 64, 65, 100]),
        alpha=st.sampled_from([0.0, 0.6, 1.0]),
        epsilon=st.sampled_from([0.0, 0.01]),
    )
    def make(self, capacity: int, alpha: float, epsilon: float) -> None:
        parameters = {"sum_tree": {"alpha": alpha, "epsilon": epsilon}, "rank": {"alpha": alpha}, "uniform": {}}
        self.config = TableConfig("machine", WHOLE, capacity, self.backend, parameters[self.backend], seed=1)
        self.table = Table(TableDirectory.create(self.parent, self.config))

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.table.close()
        shutil.rmtree(self.parent)

    # Operations.

    @rule(count=st.integers(1, 12), data=st.data(), link=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 9)))
    def insert(self, count: int, data: st.DataObject, link: tuple[int, int]) -> None:
        given = data.draw(st.none() | st.lists(PRIORITIES, min_size=count, max_size=count))
        rows = self._new_rows(count, given, link)
        keys = self.table.insert(rows, None)
        assert keys == range(self.inserted, self.inserted + count)
        self._model_insert(rows)

    @rule(beyond=st.integers(-2, 200), given=st.booleans())
    def insert_about_as_many_as_fit(self, beyond: int, given: bool) -> None:
        count = min(max(1, self.config.capacity + beyond), self.config.rows_at_once)
        rows = self._new_rows(count, [float(n % 5) for n in range(count)] if given else None, (0, 0))
        assert self.table.insert(rows, None) == range(self.inserted, self.inserted + count)
        self._model_insert(rows)

    @rule(writer=st.sampled_from(WRITERS), count=st.integers(1, 5))
    def insert_as_a_writer(self, writer: bytes, count: int) -> None:
        self.sequences[writer] += 1
        rows = self._new_rows(count, None, (1, 1))
        keys = self.table.insert(rows, WriterStamp(writer, self.sequences[writer]))
        assert keys == range(self.inserted, self.inserted + count)
        self.answers[writer, self.sequences[writer]] = keys
        self._model_insert(rows)

    @rule(writer=st.sampled_from(WRITERS), back=st.integers(0, 15))
    def repeat_an_insert(self, writer: bytes, back: int) -> None:
        sequence = self.sequences[writer] - back
        if sequence < 1:
            return
        rows = self._new_rows(3, None, (2, 2))
        assert self.table.insert(rows, WriterStamp(writer, sequence)) == self.answers[writer, sequence]

    @rule(writer=st.sampled_from(WRITERS), ahead=st.integers(2, 5))
    def skip_an_insert(self, writer: bytes, ahead: int) -> None:
        known = self.sequences[writer] > 0
        with pytest.raises(RequestError, match="sequence" if known else "unknown writer"):
            self.table.insert(self._new_rows(1, None, (2, 2)), WriterStamp(writer, self.sequences[writer] + ahead))

    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        pairs = data.draw(
            st.lists(st.tuples(st.integers(self.inserted - 130, self.inserted + 3), PRIORITIES), max_size=20)
        )
        keys = np.array([key for key, _ in pairs], np.int64)
        updated, stale = self.table.update(keys, np.array([priority for _, priority in pairs], np.float64))
        assert stale == sum(1 for key, _ in pairs if key not in self.rows)
        assert updated == len({key for key, _ in pairs if key in self.rows})
        for key, priority in pairs:
            if key in self.rows:
                self.rows[key].priority = priority

    @rule(priority=PRIORITIES)
    def update_all(self, priority: float) -> None:
        keys = np.array(sorted(self.rows), np.int64)
        assert self.table.update(keys, np.full(len(keys), priority)) == (len(keys), 0)
        for row in self.rows.values():
            row.priority = priority

    @rule(
        size=st.integers(1, 300),
        mode=st.sampled_from(DrawMode),
        norm=st.sampled_from(WeightNorm),
        beta=st.sampled_from([0.0, 0.4, 1.0]),
    )
    def draw(self, size: int, mode: DrawMode, norm: WeightNorm, beta: float) -> None:
        if not self.rows:
            with pytest.raises(RequestError, match="no rows"):
                draw_batch(self.table, Draw(size, beta, norm, mode))
            if mode is DrawMode.NEWEST_FIRST:
                self.new = set()
            return
        exact = self._exact()
        if mode is DrawMode.NEWEST_FIRST and self.backend == "rank":
            return  # refused by the call
        if mode is DrawMode.WITHOUT_REPLACEMENT and size > np.count_nonzero(exact):
            with pytest.raises((RequestError, FieldError), match=r"too few rows|only as many rows have mass"):
                draw_batch(self.table, Draw(size, beta, norm, mode))
            return
        batch = draw_batch(self.table, Draw(size, beta, norm, mode))
        assert len(batch.keys) == size
        assert mode is not DrawMode.WITHOUT_REPLACEMENT or len(set(batch.keys.tolist())) == size
        assert set(batch.keys.tolist()) <= set(self.rows)
        if mode is DrawMode.NEWEST_FIRST:
            new = [key for key in sorted(self.new or (), reverse=True) if exact[key - min(self.rows)] > 0][:size]
            assert batch.keys[: len(new)].tolist() == new
            self.new = {key for key in self.new or () if new and key < new[-1]} if len(new) == size else set()
        chosen = exact[batch.keys - min(self.rows)]
        assert (chosen > 0).all(), "a row of no mass was drawn"
        np.testing.assert_allclose(batch.probabilities, chosen, rtol=1e-12)
        reference = chosen.min() if norm is WeightNorm.BATCH else exact[exact > 0].min()
        np.testing.assert_allclose(
            batch.weights, formulas.weights(chosen, reference, len(self.rows), beta), 1e-5, atol=1e-37
        )
        assert (batch.size, batch.inserted, batch.beta) == (len(self.rows), self.inserted, beta)
        copied = TableFiles(describe(self.table, socket=self.parent / "socket")).rows(batch.keys.tobytes())
        assert copied is not None, "a live row counts as overtaken"
        assert values_in(copied).tolist() == [self.rows[key].value for key in batch.keys.tolist()]

    @rule()
    def reset(self) -> None:
        assert self.table.reset() == len(self.rows)
        self.rows.clear()
        self.new = None

    @rule()
    def come_back(self) -> None:
        """Restart the server after any kind of end: stored data is in the page cache, and is mapped again."""
        folder, uid = self.table.directory.folder, self.table.uid
        self.table.close()
        self.table = Table(TableDirectory.open(folder))
        assert self.table.uid == uid
        self.new = None

    # Invariants after each operation.

    @invariant()
    def the_table_is_sound(self) -> None:
        if hasattr(self, "table"):
            check_table(self.table)

    @invariant()
    def the_table_is_as_the_model(self) -> None:
        if not hasattr(self, "table"):
            return
        assert (self.table.inserted, self.table.size) == (self.inserted, len(self.rows))
        keys = np.array(sorted(self.rows), np.int64)
        asked = np.arange(self.inserted - 2 * self.config.slots - 1, self.inserted + 3)
        assert self.table.live_keys(asked).tolist() == keys.tolist()
        expected = [self.rows[key] for key in keys.tolist()]
        assert self.table.priorities(keys).tolist() == [row.priority for row in expected]
        assert self.table.directory.rows.links(keys).tolist() == [list(row.link) for row in expected]
        out = columns_of(np.zeros(len(keys), np.int64))
        self.table.directory.rows.gather(keys, out)
        values = values_in(b"".join(column.tobytes() for column in out.values()))
        assert values.tolist() == [row.value for row in expected]

    @invariant()
    def the_figures_are_those_of_the_model(self) -> None:
        if not hasattr(self, "table"):
            return
        priorities = [row.priority for row in self.rows.values()]
        assert self.table.largest_priority == max(priorities, default=0.0)
        assert self.table.smallest_priority == min(priorities, default=0.0)
        if self.rows and self.table.total_mass > 0:
            assert self.table.total_mass == pytest.approx(self._mass(), rel=1e-12)

    def _new_rows(self, count: int, priorities: list[float] | None, link: tuple[int, int]) -> NewRows:
        values = np.arange(self.next_value, self.next_value + count)
        self.next_value += count
        assert len(rows_of(values)) == count * WHOLE.row_bytes
        given = None if priorities is None else np.array(priorities)
        return NewRows(columns_of(values), count, given, plain_run(count, *link))

    def _model_insert(self, rows: NewRows) -> None:
        default = max((row.priority for row in self.rows.values()), default=0.0) or 1.0
        assert rows.runs is not None
        links = rows.runs.links().tolist()
        for index, value in enumerate(rows.columns["value"].tolist()):
            priority = default if rows.priorities is None else float(rows.priorities[index])
            self.rows[self.inserted] = ModelRow(value, priority, tuple(links[index]))
            if self.new is not None:
                self.new.add(self.inserted)
            self.inserted += 1
        for key in [key for key in self.rows if key < self.inserted - self.config.capacity]:
            del self.rows[key]
        if self.new is not None:
            self.new &= self.rows.keys()

    def _exact(self) -> formulas.Floats:
        priorities = np.array([self.rows[key].priority for key in sorted(self.rows)])
        return formulas.probabilities(self.backend, self.config.parameters, priorities)

    def _mass(self) -> float:
        priorities = np.array([self.rows[key].priority for key in sorted(self.rows)])
        return float(formulas.masses(self.backend, self.config.parameters, priorities).sum())


def _test_of(backend: str) -> type[TableMachine]:
    return type(f"TableMachine_{backend}", (TableMachine,), {"backend": backend})


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_table_does_what_its_model_does(backend: str) -> None:
    case = _test_of(backend).TestCase
    case.settings = settings(max_examples=examples(15), stateful_step_count=40)
    case().runTest()
