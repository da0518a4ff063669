"""Inserts into tables of steps: episodes continue step by step, or nothing is stored."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np
import pytest
from replay_proto.steps import Transitions
from replay_proto.v1 import replay_pb2
from replay_server.storage.runs import GOES_ON, TERMINATED, TRUNCATED

from tests.support.caller import CalledTable, window_shape
from tests.support.refusals import refused
from tests.support.step_audit import drawable_keys
from tests.support.step_oracle import Run
from tests.support.wire_runs import one_run, step_runs

STREAM = 7


@pytest.fixture
def steps(new_table: Callable[..., CalledTable]) -> CalledTable:
    """A table of steps, with the steps 0 to 3 of an episode, and a closed episode of another stream."""
    table = new_table(item=Transitions(n_step=2))
    table.insert(range(4), runs=step_runs([(STREAM, 0, 0, 4, GOES_ON)]))
    table.insert(range(4, 7), runs=step_runs([(STREAM + 1, 0, 0, 3, TERMINATED)]))
    return table


@pytest.mark.parametrize(
    ("runs", "field"),
    [
        pytest.param([(STREAM, 0, 5, 1, GOES_ON)], "runs.first_steps", id="a step is skipped"),
        pytest.param([(STREAM, 0, 3, 1, GOES_ON)], "runs.first_steps", id="a step is repeated"),
        pytest.param([(STREAM + 1, 0, 3, 1, GOES_ON)], "runs.episodes", id="an episode goes on after its end"),
        pytest.param([(STREAM, 1, 2, 1, GOES_ON)], "runs.first_steps", id="an episode begins in its middle"),
        pytest.param([(STREAM, 0, 4, 1, GOES_ON), (STREAM, 0, 6, 1, GOES_ON)], "runs.first_steps", id="later skip"),
        pytest.param([(STREAM, 0, 4, 1, TRUNCATED), (STREAM, 0, 5, 1, GOES_ON)], "runs.episodes", id="later end"),
    ],
)
def test_steps_out_of_order_are_refused_and_nothing_is_stored(steps: CalledTable, runs: list[Run], field: str) -> None:
    inserted = steps.describe().inserted
    with refused("INVALID_FIELD", field=field):
        steps.insert(range(sum(rows for _, _, _, rows, _ in runs)), runs=step_runs(runs))
    assert steps.describe().inserted == inserted
    steps.insert([8], runs=step_runs([(STREAM, 0, 4, 1, GOES_ON)]))  # the episode goes on


def changed(**fields: bytes) -> replay_pb2.Runs:
    """Runs of a single next step, with other arrays."""
    runs = step_runs([(STREAM, 0, 4, 1, GOES_ON)])
    for name, value in fields.items():
        setattr(runs, name, value)
    return runs


@pytest.mark.parametrize(
    ("runs", "field"),
    [
        (replay_pb2.Runs(), "runs.row_counts"),
        (changed(row_counts=np.array([2]).tobytes()), "runs.row_counts"),
        (changed(row_counts=np.array([1, 0]).tobytes()), "runs.row_counts"),
        (changed(row_counts=b"1234"), "runs.row_counts"),
        (changed(streams=b""), "runs.streams"),
        (changed(episodes=bytes(16)), "runs.episodes"),
        (changed(first_steps=b""), "runs.first_steps"),
        (changed(first_steps=np.array([-1]).tobytes()), "runs.first_steps"),
        (changed(first_steps=np.array([2**62]).tobytes()), "runs.first_steps"),
        (changed(ends=b""), "runs.ends"),
        (changed(ends=b"\3"), "runs.ends"),
        (one_run(1, STREAM, 0), "runs.first_steps"),
    ],
)
def test_runs_that_do_not_describe_the_rows_are_refused(steps: CalledTable, runs: replay_pb2.Runs, field: str) -> None:
    inserted = steps.describe().inserted
    with refused("INVALID_FIELD", field=field):
        steps.insert([8], runs=runs)
    assert steps.describe().inserted == inserted


def test_rows_without_runs_are_refused(steps: CalledTable) -> None:
    with refused("INVALID_FIELD", field="runs"):
        steps.stub.Insert(steps.insert_request([8]))


def test_a_repeated_insert_returns_its_keys_although_its_steps_are_known(steps: CalledTable) -> None:
    writer, runs = secrets.token_bytes(16), step_runs([(STREAM, 0, 4, 2, GOES_ON)])
    first = steps.insert([8, 9], writer_id=writer, sequence=1, runs=runs)
    assert steps.insert([8, 9], writer_id=writer, sequence=1, runs=runs).tolist() == first.tolist()
    assert steps.describe().inserted == 9


def test_updates_of_rows_that_cannot_be_drawn_are_stale(steps: CalledTable) -> None:
    rows = steps.read(np.arange(7))
    drawable = drawable_keys(steps, rows, window_shape(steps))
    assert drawable == {0, 1, 4, 5}
    result = steps.update(np.arange(7), np.full(7, 3.0))
    assert (result.updated, result.stale) == (4, 3)
    rows = steps.read(np.arange(7))
    assert np.isnan(rows.priorities).nonzero()[0].tolist() == [2, 3, 6]
