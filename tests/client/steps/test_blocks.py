"""The blocks of writers with several streams: runs of rows, closing rows, and priorities of completed anchors."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_client import Column, InvalidArgumentError, Next, ReplayClient, Sequences, Transitions
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
            min_delay_s=0,
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
    st.sampled_from(["append", "append", "append_all", "end"]),
    st.integers(0, 4),
    st.booleans(),
    st.booleans(),
    st.integers(0, 5),
)


class Expected:
    """What the methods of a writer say about rows and priorities, as slow and obvious code."""

    def __init__(self, item: Item, streams: int) -> None:
        self.window = Steps.of(STORED, item).window
        self.rows: list[list[Row]] = [[] for _ in range(streams)]
        self.of_windows: dict[tuple[int, int, int], float] = {}
        """By anchor; negative: none."""
        self.episode, self.step = [0] * streams, [0] * streams
        self._item = item
        self._of_steps: dict[tuple[int, int, int], float] = {}

    def number(self, stream: int) -> int:
        return number_of(stream, self.episode[stream], self.step[stream])

    def give(self, stream: int, steps_ago: int, priority: float) -> None:
        self._of_steps[stream, self.episode[stream], self.step[stream] - steps_ago] = priority

    def note(self, stream: int, end: int) -> None:
        """A row is appended; it completes windows."""
        self.rows[stream].append(Row(stream, self.episode[stream], self.step[stream], end, self.number(stream)))
        anchors = completed(self.window, self.rows[stream][-1:])
        found = [self.of_window(anchor) for anchor in anchors]
        for anchor, priority in zip(anchors, found, strict=True):
            self.of_windows[anchor] = max(found) if priority < 0 else priority
        self.step[stream] += 1

    def of_window(self, anchor: tuple[int, int, int]) -> float:
        """A transition has the priority of its first step; a sequence combines those of its steps."""
        length = self._item.length if isinstance(self._item, Sequences) else 1
        places = [(*anchor[:2], anchor[2] + place) for place in range(length)]
        known = [self._of_steps[place] for place in places if place in self._of_steps]
        if not known:
            return -1.0
        if isinstance(self._item, Transitions):
            return known[0]
        return self._item.eta * max(known) + (1 - self._item.eta) * float(np.mean(known))


@given(items, st.integers(1, 5), st.integers(5, 40), st.lists(calls, max_size=60))
def test_every_row_arrives_once_in_its_place_with_its_priority(
    item: Item, streams: int, capacity: int, made: list[tuple[str, int, bool, bool, int]]
) -> None:
    written, expected = Written(item, streams=streams, capacity=capacity), Expected(item, streams)
    numbers = iter(range(1, 10_000))
    for kind, stream, with_priority, is_terminated, ago in made:
        stream %= streams
        step = expected.step[stream]
        if kind == "append":
            steps_ago = min(ago, step, expected.window.forward)
            priority = float(next(numbers)) if with_priority else None
            if priority is not None:
                expected.give(stream, steps_ago, priority)
            written.episodes.append(stream, row(expected.number(stream)), priority, steps_ago)
            expected.note(stream, GOES_ON)
        elif kind == "append_all":
            which = np.array([each for each in range(streams) if each != stream], np.intp)
            columns = {
                "number": (own := np.array([expected.number(each) for each in range(streams)])),
                "obs": np.repeat(own[:, None], 3, axis=1).astype(np.float32),
                "done": np.zeros(streams, bool),
            }
            steps_ago = min([ago, expected.window.forward, *(expected.step[each] for each in which.tolist())])
            given_here = np.array([float(next(numbers)) for _ in range(streams)]) if with_priority else None
            if given_here is not None and is_terminated:
                given_here[::2] = np.nan  # not known
            for each in which.tolist():
                if given_here is not None and not np.isnan(given_here[each]):
                    expected.give(each, steps_ago, given_here[each])
                expected.note(each, GOES_ON)
            while len(which):
                which = which[written.episodes.append_all(columns, which, given_here, steps_ago) :]
        elif step:
            count = min(ago, step, expected.window.forward) if with_priority else 0
            last = [float(next(numbers)) for _ in range(count)]
            for place, priority in enumerate(last):
                expected.give(stream, count - place, priority)
            written.episodes.end(stream, row(expected.number(stream)), is_terminated, last or None)
            expected.note(stream, TERMINATED if is_terminated else TRUNCATED)
            expected.episode[stream], expected.step[stream] = expected.episode[stream] + 1, 0
    messages = written.rows()
    arrived: list[list[Row]] = [[] for _ in range(streams)]
    for rows, message in zip(messages, written.messages(), strict=True):
        assert 1 <= len(rows) <= capacity
        for each in rows:
            arrived[each.stream].append(each)
        due = [expected.of_windows[anchor] for anchor in completed(expected.window, rows)]
        found = np.frombuffer(message.insertion.priorities, "<f8").tolist()
        assert found == pytest.approx(due) if found else all(each < 0 for each in due)
    assert arrived == expected.rows


@given(items, st.integers(0, 12))
def test_the_end_of_an_episode_completes_the_anchors_that_no_step_has(item: Item, steps: int) -> None:
    window = Steps.of(STORED, item).window
    streams = Streams(1, window)
    completed_before = 0
    for _ in range(steps):
        completed_before += streams.completes(0)
        streams.next_steps[0] += 1
    assert completed_before + len(streams.completed_by_end(0)) == len(range(0, steps, window.period))


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


def test_priorities_of_steps_that_are_not_there_are_refused_and_nothing_is_stored() -> None:
    written = Written(Transitions(2), streams=1, capacity=10)
    with pytest.raises(InvalidArgumentError, match="steps_ago: expected 0 to 0: a step of this episode"):
        written.episodes.append(0, row(0), 1.0, 1)
    written.episodes.append(0, row(0), None)
    for strange in (2, -1, True, "1"):
        with pytest.raises(InvalidArgumentError, match="steps_ago: expected 0 to 1: a step of this episode"):
            written.episodes.append(0, row(1), 1.0, strange)  # type: ignore[arg-type]
    written.episodes.append(0, row(1), None)
    written.episodes.append(0, row(2), 1.0, 2)
    with pytest.raises(InvalidArgumentError, match="steps_ago: expected 0 to 2"):
        written.episodes.append(0, row(3), 1.0, 3)  # its window is complete
    with pytest.raises(InvalidArgumentError, match="priorities: expected at most 2"):
        written.episodes.end(0, row(3), is_terminated=True, priorities=[1.0, 2.0, 3.0])
    with pytest.raises(InvalidArgumentError, match="unknown: other"):
        written.episodes.end(0, {"other": 3}, is_terminated=True, priorities=[1.0, 2.0])
    assert [each.step for each in written.rows()[0]] == [0, 1, 2]


def test_the_priority_of_a_refused_row_is_not_that_of_the_next() -> None:
    written = Written(Transitions(1), streams=1, capacity=10)
    with pytest.raises(InvalidArgumentError):
        written.episodes.append(0, {**row(0), "obs": "?"}, 5.0)
    written.episodes.append(0, row(0), None)
    written.episodes.append(0, row(1), None)
    (message,) = written.messages()
    assert not message.insertion.priorities


@pytest.mark.parametrize(("eta", "due"), [(1.0, 8.0), (0.0, 5.0), (0.9, 0.9 * 8 + 0.1 * 5)])
def test_a_sequence_combines_the_priorities_of_its_steps(eta: float, due: float) -> None:
    written = Written(Sequences(3, burn_in=1, period=3, eta=eta), streams=1, capacity=10)
    for number, priority in enumerate([2.0, None, 8.0, 100.0]):
        written.episodes.append(0, row(number), priority)
    (message,) = written.messages()
    assert np.frombuffer(message.insertion.priorities).tolist() == pytest.approx([due])


def test_no_row_is_appended_if_a_later_stream_has_no_such_step(client: ReplayClient) -> None:
    table = client.create_table(
        "whole-vectors", columns={"x": Column("int64"), "y": Next("x")}, capacity=300, steps=Transitions(n_step=3)
    )
    with table.writer(streams=4, block_rows=2) as writer:
        for value in range(2):
            writer.append_all(x=np.full(4, value))
        writer.end_episodes(np.arange(4) == 3, x=np.zeros(4, np.int64))
        before = writer.acknowledged + writer.in_flight
        with pytest.raises(InvalidArgumentError, match="steps_ago: expected 0 to 0"):
            writer.append_all(x=np.full(4, 2), priorities=np.ones(4), steps_ago=2)
        assert writer.acknowledged + writer.in_flight == before
    table.drop()
