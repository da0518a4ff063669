"""A table of steps compared with the oracle under random operations, in process."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from replay_proto.steps import Discount, Item, Sequences, Stack, Steps, Transitions
from replay_server.backends import BACKENDS
from replay_server.errors import RequestError
from replay_server.storage.runs import GOES_ON
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.draws import Draw, WeightNorm
from replay_server.table.table import NewRows, Table, WriterStamp

from tests.support import formulas
from tests.support.drawing import draw_batch
from tests.support.examples import examples
from tests.support.invariants import check_table
from tests.support.rows import WHOLE, columns_of
from tests.support.step_oracle import ENDS, Oracle, Run, runs_of

PRIORITIES = st.one_of(st.sampled_from([0.0, 1.0, 1.0, 2.5]), st.floats(1e-6, 1e6))
ITEMS: list[Item] = [Transitions(1), Transitions(3), Sequences(4, burn_in=2, period=2), Sequences(3, period=3)]
WRITER = b"w" * 16


class StepMachine(RuleBasedStateMachine):
    """Inserts with and without priorities, updates, draws, resets and restarts."""

    backend: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.parent = Path(tempfile.mkdtemp(prefix="step-machine-"))
        self.at: dict[int, tuple[int, int]] = {}
        self.priority: dict[int, float] = {}
        self.sequence = 0
        self.lost = 0

    @initialize(item=st.sampled_from(ITEMS), stack=st.integers(1, 4), capacity=st.sampled_from([10, 30, 70]))
    def make(self, item: Item, stack: int, capacity: int) -> None:
        steps = Steps.of({**WHOLE, "stacked": Stack("payload", stack), "discount": Discount()}, item)
        self.config = TableConfig("machine", steps.schema, capacity, self.backend, seed=1, steps=steps)
        self.oracle = Oracle(steps.window)
        self.table = Table(TableDirectory.create(self.parent, self.config))

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.table.close()
        shutil.rmtree(self.parent)

    @rule(
        parts=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.sampled_from(ENDS)), min_size=1, max_size=4),
        data=st.data(),
    )
    def insert(self, parts: list[tuple[int, int, int]], data: st.DataObject) -> None:
        runs: list[Run] = []
        for stream, count, end in parts:
            episode, step = self.at.get(stream, (0, 0))
            runs.append((stream, episode, step, count, end))
            self.at[stream] = (episode, step + count) if end == GOES_ON else (episode + 1, 0)
        rows, first = sum(count for _, count, _ in parts), len(self.oracle.rows)
        named = runs_of(*runs)
        number = self.table.priorities_of(rows, named)
        given = data.draw(st.none() | st.lists(PRIORITIES, min_size=number, max_size=number))
        default = max(self.priority.values(), default=0.0) or 1.0
        self.sequence += 1
        keys = self.table.insert(
            NewRows(
                columns_of(np.arange(first, first + rows)), rows, None if given is None else np.array(given), named
            ),
            WriterStamp(WRITER, self.sequence),
        )
        assert keys == range(first, first + rows)
        before = self.oracle.drawable
        for run in runs:
            self.oracle.insert(run)
        complete = sorted(
            self.oracle.drawable - before,
            key=lambda key: (self._run_of(key, runs, first), self.oracle.rows[key].step),
        )
        if given is None:
            self.priority |= dict.fromkeys(complete, default)
        else:
            # Windows that lack an earlier row are not complete, and their priorities are not used.
            places = self._places(runs)
            for key in complete:
                row = self.oracle.rows[key]
                self.priority[key] = given[places[row.stream, row.episode, row.step]]
        oldest = max(self.oracle.oldest, len(self.oracle.rows) - self.config.capacity)
        self.lost += sum(map(self.oracle.is_pending, range(self.oracle.oldest, oldest)))
        self.oracle.oldest = oldest
        self._drop_gone()

    def _run_of(self, key: int, runs: list[Run], first: int) -> int:
        row = self.oracle.rows[key]
        return next(i for i, run in enumerate(runs) if run[:2] == (row.stream, row.episode))

    def _places(self, runs: list[Run]) -> dict[tuple[int, int, int], int]:
        shape = self.oracle.shape
        steps = [
            (stream, episode, step)
            for stream, episode, start, rows, end in runs
            for step in range(max(0, start - shape.forward), start + rows)
            if step % shape.period == 0
            and (step < start + rows - 1 if end != GOES_ON else step + shape.forward < start + rows)
        ]
        return {step: place for place, step in enumerate(steps)}

    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        inserted = len(self.oracle.rows)
        pairs = data.draw(st.lists(st.tuples(st.integers(inserted - 90, inserted + 3), PRIORITIES), max_size=20))
        keys = np.array([key for key, _ in pairs], np.int64)
        updated, stale = self.table.update(keys, np.array([priority for _, priority in pairs], np.float64))
        assert stale == sum(key not in self.priority for key, _ in pairs)
        assert updated == len({key for key, _ in pairs if key in self.priority})
        self.priority |= {key: priority for key, priority in pairs if key in self.priority}

    @rule(size=st.integers(1, 300), norm=st.sampled_from(WeightNorm), beta=st.sampled_from([0.0, 0.4, 1.0]))
    def draw(self, size: int, norm: WeightNorm, beta: float) -> None:
        if not self.priority:
            with pytest.raises(RequestError, match=r"no (rows|steps) to draw"):
                draw_batch(self.table, Draw(size, beta, norm))
            return
        batch = draw_batch(self.table, Draw(size, beta, norm))
        keys = np.array(sorted(self.priority))
        exact = formulas.probabilities(
            self.backend, self.config.parameters, np.array([self.priority[key] for key in keys.tolist()])
        )
        assert set(batch.keys.tolist()) <= set(self.priority), "a row was drawn that is not drawable"
        chosen = exact[np.searchsorted(keys, batch.keys)]
        np.testing.assert_allclose(batch.probabilities, chosen, rtol=1e-12)
        reference = chosen.min() if norm is WeightNorm.BATCH else exact[exact > 0].min()
        np.testing.assert_allclose(batch.weights, formulas.weights(chosen, reference, len(keys), beta), 1e-5)
        assert batch.drawable == len(keys)
        assert batch.windows is not None
        expected = [self.oracle.window(key) for key in batch.keys.tolist()]
        assert batch.windows.keys.tolist() == [key for window in expected if window for part in window for key in part]

    @rule()
    def reset(self) -> None:
        assert self.table.reset() == len(self.oracle.rows) - self.oracle.oldest
        self.oracle.oldest = len(self.oracle.rows)
        self.lost = 0
        self._drop_gone()

    @rule()
    def come_back(self) -> None:
        """Restart the server after any kind of end."""
        folder = self.table.directory.folder
        self.table.close()
        self.table = Table(TableDirectory.open(folder))
        self.lost = 0

    def _drop_gone(self) -> None:
        drawable = self.oracle.drawable
        self.priority = {key: priority for key, priority in self.priority.items() if key in drawable}
        assert set(self.priority) == drawable

    @invariant()
    def the_table_is_sound(self) -> None:
        if hasattr(self, "table"):
            check_table(self.table)

    @invariant()
    def the_table_is_as_the_oracle(self) -> None:
        if not hasattr(self, "table"):
            return
        assert self.table.drawable == len(self.priority)
        assert self.table.step_counts is not None
        assert self.table.step_counts.lost == self.lost
        keys = np.array(sorted(self.priority), np.int64)
        assert self.table.priorities(keys).tolist() == [self.priority[key] for key in keys.tolist()]
        assert self.table.largest_priority == max(self.priority.values(), default=0.0)
        assert self.table.smallest_priority == min(self.priority.values(), default=0.0)


def _machine(backend: str) -> type[StepMachine]:
    return type(f"StepMachine_{backend}", (StepMachine,), {"backend": backend})


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_table_of_steps_does_what_the_oracle_does(backend: str) -> None:
    case = _machine(backend).TestCase
    case.settings = settings(max_examples=examples(20), stateful_step_count=30, deadline=None)
    case().runTest()
