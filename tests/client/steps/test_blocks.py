"""The blocks of writers with several streams: runs of rows, closing rows, and priorities of completed anchors."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_client import Column, InvalidArgumentError, Next, Sequences, Transitions
from replay_client._rows.block import RowBlock
from replay_client._transport.pending import PendingRequests
from replay_client._writing.episodes import Episodes, Streams
from replay_client._writing.outbox import Outbox, SentBlock
from replay_client.results.description import TableDescription
from replay_proto.framing import column_views
from replay_proto.schema import Schema
from replay_proto.steps import Item, Steps, WindowShape
from replay_proto.v1 import replay_pb2

STORED = {"number": Column("int64"), "obs": Column("float32", 3), "done": Column("bool")}
GOES_ON, TRUNCATED, TERMINATED = range(3)


class Row(NamedTuple):
    """A row as the server gets it."""

    stream: int
    episode: int
    step: int
    end: int
    number: int


class Written:
    """A table's writer without a server."""

    def __init__(
        self, item: Item | None, *, streams: int, capacity: int, derived: dict[str, Any] | None = None
    ) -> None:
        steps = None if item is None else Steps.of({**STORED, **(derived or {})}, item)
        self.schema = Schema(STORED)
        table = TableDescription(
            "t", b"", self.schema, 1000, "uniform", {}, None, 0, 0, 2000, self.schema.row_bytes, steps=steps
        )
        self.streams = Streams(streams, None if steps is None else steps.window)
        block = RowBlock(self.schema, capacity, self.streams.numbers, of_steps=steps is not None)
        self._pending: PendingRequests[SentBlock] = PendingRequests(reconnect_timeout_s=0, keep_refused=True)
        self.outbox = Outbox(
            table,
            block,
            self._pending,
            max_blocks_in_flight=sys.maxsize,
            max_delay_s=0,
            clock=lambda: 0.0,
            wake=lambda: None,
        )
        self.episodes = Episodes(table, self.streams, self.outbox)

    def rows(self) -> list[list[Row]]:
        """The rows of each message, in its order."""
        return [self._rows_of(message) for message in self.messages()]

    def messages(self) -> list[replay_pb2.WriteRequest]:
        """The messages that would be sent."""
        self.outbox.hand_over()
        return [replay_pb2.WriteRequest.FromString(b"".join(sent.parts())) for sent in self._pending.requests]

    def _rows_of(self, message: replay_pb2.WriteRequest) -> list[Row]:
        runs = message.insertion.runs
        counts = np.frombuffer(runs.row_counts, "<i8")
        assert counts.sum() == message.insertion.row_count
        assert counts.min() >= 1
        columns = column_views(self.schema, memoryview(message.rows), message.insertion.row_count)
        numbers = iter(columns["number"].tolist())
        np.testing.assert_array_equal(columns["obs"], np.repeat(columns["number"][:, None], 3, axis=1))
        index_of = {int(number): index for index, number in enumerate(self.streams.numbers)}
        streams = [index_of[number] for number in np.frombuffer(runs.streams, "<u8").tolist()]
        episodes = np.frombuffer(runs.episodes, "<u8").tolist()
        first_steps = np.frombuffer(runs.first_steps, "<i8").tolist() or [0] * len(counts)
        ends = np.frombuffer(runs.ends, "u1").tolist() or [GOES_ON] * len(counts)
        return [
            Row(stream, episode, first + place, end if place == count - 1 else GOES_ON, next(numbers))
            for stream, episode, first, end, count in zip(streams, episodes, first_steps, ends, counts, strict=True)
            for place in range(count)
        ]


def row(number: int) -> dict[str, Any]:
    return {"number": number, "obs": np.full(3, number, np.float32), "done": False}


def number_of(stream: int, episode: int, step: int) -> int:
    return stream * 1_000_000 + episode * 1000 + step


def completed(window: WindowShape, rows: list[Row]) -> list[tuple[int, int, int]]:
    """The anchors that the rows of a message complete, in the order of the protocol."""
    anchors = []
    for arrived in rows:
        reached = [arrived.step - window.forward]
        if arrived.end != GOES_ON:
            reached = list(range(max(0, arrived.step - window.forward), arrived.step))
        anchors += [(arrived.stream, arrived.episode, step) for step in reached if step >= 0]
    return [anchor for anchor in anchors if anchor[2] % window.period == 0]


items = st.one_of(
    st.builds(Transitions, st.integers(1, 4)),
    st.integers(1, 5).flatmap(lambda length: st.builds(Sequences, st.just(length), period=st.integers(1, length))),
)
calls = st.tuples(
    st.sampled_from(["append", "append", "append_all", "end"]), st.integers(0, 4), st.booleans(), st.booleans()
)


@given(items, st.integers(1, 5), st.integers(5, 40), st.lists(calls, max_size=60))
def test_every_row_arrives_once_in_its_place_with_its_priority(
    item: Item, streams: int, capacity: int, made: list[tuple[str, int, bool, bool]]
) -> None:
    written = Written(item, streams=streams, capacity=capacity)
    expected: list[list[Row]] = [[] for _ in range(streams)]
    priorities: dict[tuple[int, int, int], float] = {}
    window = Steps.of(STORED, item).window
    episode, step = [0] * streams, [0] * streams

    def note(stream: int, end: int, *, with_priority: bool) -> list[float]:
        number = number_of(stream, episode[stream], step[stream])
        expected[stream].append(Row(stream, episode[stream], step[stream], end, number))
        anchors = completed(window, expected[stream][-1:])
        given_here = {anchor: float(number_of(*anchor)) for anchor in anchors}
        priorities.update(given_here if with_priority else dict.fromkeys(anchors, -1.0))
        step[stream] += 1
        return list(given_here.values())

    for kind, stream, with_priority, is_terminated in made:
        stream %= streams
        if kind == "append":
            values = row(number_of(stream, episode[stream], step[stream]))
            due = note(stream, GOES_ON, with_priority=with_priority)
            written.episodes.append(stream, values, due[0] if due and with_priority else None)
        elif kind == "append_all":
            numbers = np.array([number_of(each, episode[each], step[each]) for each in range(streams)])
            which = np.array([each for each in range(streams) if each != stream], np.intp)
            given_here = np.full(streams, np.nan)
            for each in which.tolist():
                due = note(each, GOES_ON, with_priority=with_priority)
                given_here[each] = due[0] if due else np.nan
            columns = {
                "number": numbers,
                "obs": np.repeat(numbers[:, None], 3, axis=1).astype(np.float32),
                "done": np.zeros(streams, bool),
            }
            while len(which):
                which = which[written.episodes.append_all(columns, which, given_here if with_priority else None) :]
        elif step[stream]:
            values = row(number_of(stream, episode[stream], step[stream]))
            due = note(stream, TERMINATED if is_terminated else TRUNCATED, with_priority=with_priority)
            written.episodes.end(stream, values, is_terminated, due if with_priority else None)
            episode[stream], step[stream] = episode[stream] + 1, 0
    messages = written.rows()
    arrived: list[list[Row]] = [[] for _ in range(streams)]
    for rows, message in zip(messages, written.messages(), strict=True):
        assert 1 <= len(rows) <= capacity
        for each in rows:
            arrived[each.stream].append(each)
        anchors, given_there = completed(window, rows), np.frombuffer(message.insertion.priorities, "<f8").tolist()
        assert given_there in ([], [priorities[anchor] for anchor in anchors])
        assert given_there or all(priorities[anchor] == -1.0 for anchor in anchors)
    assert arrived == expected


@given(items, st.integers(0, 12))
def test_the_end_of_an_episode_completes_the_anchors_that_no_step_has(item: Item, steps: int) -> None:
    window = Steps.of(STORED, item).window
    streams = Streams(1, window)
    completed_before = 0
    for _ in range(steps):
        completed_before += streams.completes(0)
        streams.next_steps[0] += 1
    assert completed_before + streams.completed_by_end(0) == len(range(0, steps, window.period))


def test_a_refused_row_begins_no_run() -> None:
    written = Written(Transitions(1), streams=2, capacity=10)
    with pytest.raises(InvalidArgumentError):
        written.episodes.append(0, {**row(0), "obs": "?"}, None)
    written.episodes.append(1, row(7), None)
    assert written.rows() == [[Row(1, 0, 0, GOES_ON, 7)]]


def test_rows_of_a_plain_table_have_no_steps_and_one_priority_each() -> None:
    written = Written(None, streams=2, capacity=10)
    for number in range(6):
        written.episodes.append(number % 2, row(number), float(number))
        if number == 3:
            written.episodes.end(1, {}, is_terminated=False, priorities=None)
    (rows,) = written.rows()
    assert [(each.stream, each.episode, each.number) for each in rows] == [
        (0, 0, 0), (0, 0, 2), (0, 0, 4), (1, 0, 1), (1, 0, 3), (1, 1, 5),
    ]  # fmt: skip
    (message,) = written.messages()
    assert np.frombuffer(message.insertion.priorities).tolist() == [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]
    assert not message.insertion.runs.ends
    assert not message.insertion.runs.first_steps
    with pytest.raises(InvalidArgumentError, match="no values"):
        written.episodes.end(0, row(1), is_terminated=False, priorities=None)
    with pytest.raises(InvalidArgumentError, match="terminated"):
        written.episodes.end(0, {}, is_terminated=True, priorities=None)


def test_a_closing_row_has_zeros_where_nothing_was_given() -> None:
    written = Written(Transitions(1), streams=1, capacity=10)
    written.episodes.append(0, row(7), None)
    written.episodes.end(0, {"obs": np.zeros(3)}, is_terminated=False, priorities=None)
    assert [(each.number, each.end) for each in written.rows()[0]] == [(7, GOES_ON), (0, TRUNCATED)]


def test_an_episode_without_steps_leaves_no_row() -> None:
    written = Written(Transitions(1), streams=1, capacity=10)
    written.episodes.end(0, {}, is_terminated=True, priorities=None)
    assert written.rows() == []


def test_the_final_observation_is_required_where_it_is_drawn() -> None:
    written = Written(Transitions(1), streams=1, capacity=10, derived={"next_obs": Next("obs")})
    written.episodes.append(0, row(1), None)
    with pytest.raises(InvalidArgumentError, match="the final values of obs"):
        written.episodes.end(0, {"number": 1}, is_terminated=False, priorities=None)
    sequences = Written(Sequences(2), streams=1, capacity=10)
    sequences.episodes.append(0, row(1), None)
    with pytest.raises(InvalidArgumentError, match="at least one column"):
        sequences.episodes.end(0, {}, is_terminated=False, priorities=None)


def test_a_priority_without_a_completed_anchor_is_refused_and_nothing_is_stored() -> None:
    written = Written(Transitions(2), streams=1, capacity=10)
    written.episodes.append(0, row(0), None)
    with pytest.raises(InvalidArgumentError, match="priority: expected none at step 1"):
        written.episodes.append(0, row(1), 1.0)
    written.episodes.append(0, row(1), None)
    written.episodes.append(0, row(2), 1.0)
    with pytest.raises(InvalidArgumentError, match="float64\\[2\\]"):
        written.episodes.end(0, row(3), is_terminated=True, priorities=[1.0])
    with pytest.raises(InvalidArgumentError, match="unknown: other"):
        written.episodes.end(0, {"other": 3}, is_terminated=True, priorities=[1.0, 2.0])
    assert [each.step for each in written.rows()[0]] == [0, 1, 2]
