"""Which steps are drawable, and their windows, against an oracle that derives every window again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from replay_proto.errors import FieldError
from replay_proto.steps import WindowShape
from replay_server.backends.index import LiveRows
from replay_server.storage.runs import GOES_ON, TERMINATED, TRUNCATED
from replay_server.table.items.step_windows import StepWindows

from tests.support.examples import examples
from tests.support.step_oracle import ENDS, Oracle, Run, runs_of

SLOTS = 96


class Steps(RuleBasedStateMachine):
    """Writers of several streams, eviction, resets and restarts."""

    @initialize(
        forward=st.integers(1, 6), backward=st.integers(0, 5), period=st.integers(1, 3), capacity=st.integers(8, 40)
    )
    def begin(self, forward: int, backward: int, period: int, capacity: int) -> None:
        """Create a table."""
        self.shape = WindowShape(forward, backward, period)
        self.capacity = capacity
        self.oracle = Oracle(self.shape)
        self.items = StepWindows(SLOTS, self.shape)
        self.links = np.zeros((SLOTS, 3), np.uint64)
        self.at: dict[int, tuple[int, int]] = {}
        self.drawable: set[int] = set()

    @rule(
        parts=st.lists(
            st.tuples(st.integers(0, 3), st.integers(1, 9), st.sampled_from(ENDS), st.integers(0, 12)),
            min_size=1,
            max_size=4,
        )
    )
    def insert(self, parts: list[tuple[int, int, int, int]]) -> None:
        """Rows that continue where their streams are; some skip a step, or begin another episode in the middle."""
        given: list[Run] = []
        for stream, count, end, odd in parts:
            episode, step = self.at.get(stream, (0, 0))
            step += odd == 0
            episode += odd == 1
            given.append((stream, episode, step, count, end))
            self.at[stream] = (episode, step + count) if end == GOES_ON else (episode + 1, 0)
        first, runs = len(self.oracle.rows), runs_of(*given)
        rows = int(runs.row_counts.sum())
        self.links[np.arange(first, first + rows) % SLOTS] = runs.links()
        before = self.oracle.drawable
        for run in given:
            self.oracle.insert(run)
        new = self.items.arrive(first, rows, runs, self.oracle.oldest)
        complete = new.keys.tolist()
        assert set(complete) == self.oracle.drawable - before
        self._check_places(given, complete, np.asarray(new.places).tolist(), self.items.priorities_of(rows, runs))
        self.drawable |= set(complete)
        self._evict(max(0, len(self.oracle.rows) - self.oracle.oldest - self.capacity))

    def _check_places(self, given: list[Run], complete: list[int], places: list[int], number: int) -> None:
        """Every step that a run completes by its number has a place, in the order of runs and steps."""
        steps = [
            (stream, episode, step)
            for stream, episode, first, rows, end in given
            for step in range(max(0, first - self.shape.forward), first + rows)
            if step % self.shape.period == 0
            and (step < first + rows - 1 if end != GOES_ON else step + self.shape.forward < first + rows)
        ]
        assert len(steps) == number
        found = [(self.oracle.rows[k].stream, self.oracle.rows[k].episode, self.oracle.rows[k].step) for k in complete]
        assert [steps[place] for place in places] == found

    @rule()
    def reset(self) -> None:
        """Remove everything."""
        self.oracle.oldest = len(self.oracle.rows)
        self.drawable.clear()
        self.items = self.items.blank()

    @rule()
    def restart(self) -> None:
        """Link the stored rows again."""
        self.items = StepWindows(SLOTS, self.shape)
        keys = np.arange(self.live.oldest, self.live.oldest + self.live.size)
        drawable = self.items.rebuild(self.live, self.links[keys % SLOTS], np.zeros(len(keys), np.bool_))
        assert set(keys[drawable].tolist()) == self.oracle.drawable

    def _evict(self, count: int) -> None:
        oldest = self.oracle.oldest
        gone = self.items.leave(oldest, oldest + count).tolist()
        assert len(set(gone)) == len(gone)
        self.oracle.oldest += count
        self.drawable -= set(gone)

    @property
    def live(self) -> LiveRows:
        """The live rows."""
        return LiveRows(self.oracle.oldest, len(self.oracle.rows) - self.oracle.oldest, SLOTS)

    @invariant()
    def the_drawable_rows_are_the_oracles(self) -> None:
        if not hasattr(self, "oracle"):
            return
        expected, oracle = self.oracle.drawable, self.oracle
        assert self.drawable == expected
        keys = range(self.live.oldest, self.live.oldest + self.live.size)
        counts = self.items.counts
        assert counts.drawable == self.items.count(self.live.size) == len(expected)
        assert counts.drawable <= self.shape.most_drawable(self.capacity)
        assert counts.closing == sum(oracle.rows[key].end != GOES_ON for key in keys)
        assert counts.drawable + counts.pending + counts.broken == sum(oracle.is_anchor(key) for key in keys)

    @invariant()
    def windows_are_the_oracles(self) -> None:
        if not getattr(self, "drawable", None):
            return
        anchors = np.array(sorted(self.drawable))
        windows = self.items.windows(anchors)
        expected = [self.oracle.window(key) for key in anchors.tolist()]
        assert windows.keys.tolist() == [key for window in expected if window for part in window for key in part]
        assert windows.before.tolist() == [len(window[0]) for window in expected if window]
        assert windows.after.tolist() == [len(window[1]) - 1 for window in expected if window]
        assert windows.ends.tolist() == [self.oracle.rows[window[1][-1]].end for window in expected if window]
        assert windows.keys[windows.firsts(self.shape.backward)].tolist() == [
            (window[0] + window[1])[0] for window in expected if window
        ]


Steps.TestCase.settings = settings(max_examples=examples(75), stateful_step_count=40, deadline=None)
TestSteps = Steps.TestCase


@pytest.mark.parametrize(
    ("next_run", "field"),
    [
        ((1, 7, 3, 1, GOES_ON), "runs.first_steps"),
        ((1, 7, 5, 1, GOES_ON), "runs.first_steps"),
        ((1, 8, 1, 1, GOES_ON), "runs.first_steps"),
        ((2, 9, 2, 1, GOES_ON), "runs.episodes"),
    ],
    ids=["a step again", "a step skipped", "an episode from its middle", "on after the end"],
)
def test_runs_that_do_not_follow_are_refused(next_run: Run, field: str) -> None:
    items = StepWindows(SLOTS, WindowShape(1, 0))
    items.arrive(0, 6, runs_of((1, 7, 0, 4, GOES_ON), (2, 9, 0, 2, TRUNCATED)), 0)
    with pytest.raises(FieldError) as refusal:
        items.check(runs_of(next_run))
    assert refusal.value.field == field


def test_runs_that_follow_are_accepted() -> None:
    items = StepWindows(SLOTS, WindowShape(1, 0))
    items.arrive(0, 6, runs_of((1, 7, 0, 4, GOES_ON), (2, 9, 0, 2, TRUNCATED)), 0)
    items.check(runs_of((1, 7, 4, 2, TERMINATED), (1, 8, 0, 3, GOES_ON), (2, 3, 0, 1, GOES_ON), (3, 5, 40, 1, GOES_ON)))
    with pytest.raises(FieldError):
        items.check(runs_of((1, 7, 4, 2, TERMINATED), (1, 7, 6, 3, GOES_ON)))
