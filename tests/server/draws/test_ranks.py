"""Questions about ranks on a learner's stream, rows by key, and samples that are charged apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from replay_proto.v1 import replay_pb2

from tests.support.caller import CalledTable, LearnStream, make_draw
from tests.support.refusals import refused
from tests.support.rows import WHOLE

NewTable = Callable[..., CalledTable]
PRIORITIES = np.array([3.0, 1.0, 3.0, 0.0, 7.0])
"""Priorities of the rows; by rank, their keys are 4, 2, 0, 1, 3."""


@pytest.fixture
def stream(new_table: NewTable) -> Iterator[LearnStream]:
    """A learner's stream for a table that is drawn by rank."""
    table = new_table(backend="rank", parameters={"alpha": 1.0}, seed=0)
    table.insert(range(5), PRIORITIES)
    opened = LearnStream(table)
    yield opened
    opened.vanish()


def ask(stream: LearnStream, **query: Any) -> replay_pb2.RankAnswer:
    return stream.ask(ranks=replay_pb2.RankQuery(**query))[0].ranks


def test_proposed_rows_come_with_their_ranks_and_priorities(stream: LearnStream) -> None:
    answer = ask(stream, draws=2000)
    keys, ranks = np.frombuffer(answer.keys, "<i8"), np.frombuffer(answer.ranks, "<i8")
    np.testing.assert_array_equal(np.array([4, 2, 0, 1, 3])[ranks - 1], keys)
    np.testing.assert_array_equal(np.frombuffer(answer.priorities), PRIORITIES[keys])
    counts = np.bincount(ranks)[1:]
    expected = 2000 / np.arange(1, 6) / (1 / np.arange(1, 6)).sum()
    assert (abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_rows_with_larger_priorities_are_counted(stream: LearnStream) -> None:
    asked = np.array([-1.0, 0.0, 0.5, 1.0, np.nextafter(3.0, 0.0), 3.0, 7.0, 8.0])
    answer = ask(stream, priorities=asked.tobytes())
    assert np.frombuffer(answer.larger, "<i8").tolist() == [5, 4, 4, 3, 3, 1, 0, 0]
    assert answer.keys == b""


def test_an_empty_table_proposes_nothing(new_table: NewTable) -> None:
    stream = LearnStream(new_table(backend="rank"))
    answer = ask(stream, draws=3, priorities=np.ones(2).tobytes())
    assert answer.keys == answer.ranks == answer.priorities == b""
    assert np.frombuffer(answer.larger, "<i8").tolist() == [0, 0]
    stream.vanish()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_ranks_of_numbers_that_are_not_finite_are_refused(stream: LearnStream, number: float) -> None:
    with refused("INVALID_FIELD", field="ranks.priorities"):
        ask(stream, priorities=np.array([1.0, number]).tobytes())


def test_ranks_of_a_table_without_ranks_are_refused(table: CalledTable) -> None:
    stream = LearnStream(table)
    with refused("INVALID_FIELD", field="ranks"):
        ask(stream, draws=1)
    stream.vanish()


def test_rows_are_returned_by_key_as_far_as_they_can_be_drawn(stream: LearnStream) -> None:
    draw = make_draw(4)
    draw.keys = np.array([2, 99, 2, 4]).tobytes()
    stream.send(draw=draw)
    answer = stream.receive()
    (batch,) = answer.batches
    assert np.frombuffer(batch.keys, "<i8").tolist() == [2, 2, 4]
    assert (batch.probabilities, batch.weights) == (b"", b"")
    assert len(answer.rows) == 3 * WHOLE.row_bytes


def test_keys_must_be_as_many_as_the_batch_has_rows(stream: LearnStream) -> None:
    draw = make_draw(4)
    draw.keys = np.array([2, 4]).tobytes()
    with refused("INVALID_FIELD", field="draw.keys"):
        stream.ask(draw=draw)


def test_rows_of_a_queue_are_not_returned_by_key(new_table: NewTable) -> None:
    queue = new_table(backend="fifo")
    queue.insert(range(3))
    stream = LearnStream(queue)
    draw = make_draw(1)
    draw.keys = np.array([1]).tobytes()
    with refused("INVALID_FIELD", field="draw"):
        stream.ask(draw=draw)
    stream.vanish()


def test_samples_of_a_table_without_a_limiter_are_not_charged(table: CalledTable) -> None:
    stream = LearnStream(table)
    with refused("INVALID_FIELD", field="charge"):
        stream.ask(charge=1)
    stream.vanish()
