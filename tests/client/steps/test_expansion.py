"""Columns of drawn windows, against a plain oracle, from received rows and from mapped files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from replay_client import (
    Batch,
    Column,
    Discount,
    InternalServerError,
    Mask,
    Next,
    Return,
    Sequences,
    Stack,
    Transitions,
)
from replay_client._learning.answers import BatchReader
from replay_client._rows.buffers import ColumnBuffers
from replay_proto.steps import Item, Steps
from replay_proto.v1 import replay_pb2

from tests.client.steps.oracle import Columns
from tests.client.steps.planned_episodes import GOES_ON, TERMINATED, TRUNCATED, PlannedEpisode, anchors, drawn

DRAW = replay_pb2.Draw()

Picked = tuple[int, int]
"""The number of an episode, and a step in it."""

STORED = {
    "frame": Column("uint8", (2, 3)),
    "action": Column("int64"),
    "reward": Column("float32", sampled=False),
    "rewards": Column("float64", 2, sampled=False),
    "half": Column("float16", 3, sampled=False),
    "unused": Column("int16", sampled=False),
}
SLOTS = 997


def steps_of(columns: Columns, item: Item) -> Steps:
    return Steps.of(columns, item)


def some_rows(count: int, seed: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(size=(count, *column.shape)) * 20).astype(column.dtype, casting="unsafe")
        for name, column in {**STORED, "state": STATE}.items()
    }


STATE = Column("float16", 4, at="start")


@st.composite
def episodes(draw: st.DrawFn) -> list[PlannedEpisode]:
    made = []
    for number in range(draw(st.integers(1, 4))):
        count, end = draw(st.integers(2, 9)), draw(st.sampled_from([GOES_ON, TRUNCATED, TERMINATED]))
        made.append(PlannedEpisode(some_rows(count, seed=number), end))
    return made


@st.composite
def transitions(draw: st.DrawFn) -> tuple[Columns, Transitions]:
    stack = st.builds(
        Stack,
        st.sampled_from(["frame", "action", "half"]),
        st.integers(1, 5),
        st.sampled_from(["zero", "repeat"]),
        st.booleans(),
    )
    derived = {f"derived{place}": draw(stack) for place in range(draw(st.integers(0, 3)))}
    others: Columns = {
        "next": Next("frame"),
        "n_return": Return("reward"),
        "n_returns": Return("rewards"),
        "half_return": Return("half"),
        "discount": Discount(),
    }
    return {**STORED, **derived, **others}, Transitions(draw(st.integers(1, 6)), draw(st.sampled_from([0.0, 0.9, 1.0])))


@st.composite
def sequences(draw: st.DrawFn) -> tuple[Columns, Sequences]:
    stack = st.builds(
        Stack, st.sampled_from(["frame", "reward"]), st.integers(1, 4), st.sampled_from(["zero", "repeat"])
    )
    derived = {f"derived{place}": draw(stack) for place in range(draw(st.integers(0, 2)))}
    length = draw(st.integers(1, 7))
    item = Sequences(length, draw(st.integers(0, 4)), draw(st.integers(1, length)), draw(st.sampled_from([0.9, 1.0])))
    return {**STORED, **derived, "state": STATE, "discount": Discount(), "mask": Mask()}, item


@dataclass
class Answered:
    """What a server would answer, and where the rows are."""

    steps: Steps
    message: replay_pb2.Batch
    rows: bytes
    slots: Mapping[str, NDArray[np.uint8]]


class FakeFiles:
    """Mapped files of a table; inserts overtake the copy of the rows with the keys ``overtaken``."""

    def __init__(self, slots: Mapping[str, NDArray[np.uint8]], overtaken: bytes = b"") -> None:
        self.as_bytes, self.is_refused = slots, False
        self.overtaken = np.frombuffer(overtaken, "<i8")
        self.checked: list[NDArray[np.int64]] = []

    def slots_of(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        return keys % SLOTS

    def copied(self, keys: NDArray[np.int64], copy: Callable[[], None]) -> bool:
        copy()
        self.checked.append(keys)
        return not np.isin(keys, self.overtaken).any()


def answered(columns: Columns, item: Item, made: list[PlannedEpisode], picked: list[Picked]) -> Answered:
    """What a server answers when these steps are drawn; the rows of all episodes are mixed in its ring."""
    steps = steps_of(columns, item)
    rng = np.random.default_rng(len(made))
    taken = np.sort(rng.choice(SLOTS, sum(map(len, made)), replace=False))
    keys, first = [], 0
    for order in np.split(rng.permutation(len(taken)), np.cumsum([len(episode) for episode in made])[:-1]):
        keys.append(np.sort(taken[order]) + 3 * SLOTS)
    slots = {
        name: rng.integers(0, 256, (SLOTS, column.row_bytes)).astype(np.uint8) for name, column in steps.schema.items()
    }
    for episode, of_rows in zip(made, keys, strict=True):
        for name in steps.schema:
            slots[name][of_rows % SLOTS] = episode.rows[name].reshape(len(episode), -1).view(np.uint8)
    before, after, ends, firsts, window_keys = [], [], [], [], []
    for number, anchor in picked:
        episode = made[number]
        first = max(0, anchor - steps.window.backward)
        last = min(anchor + steps.window.forward, len(episode) - 1)
        before.append(anchor - first)
        after.append(last - anchor)
        ends.append(episode.end if last == len(episode) - 1 else GOES_ON)
        window_keys.append(keys[number][first : last + 1])
        burn_in = item.burn_in if isinstance(item, Sequences) else 0
        firsts.append(keys[number][max(0, anchor - burn_in)])
    rows = b""
    for name, column in steps.carried.items():
        wanted = np.array(firsts) if column.at == "start" else np.concatenate(window_keys)
        rows += slots[name][wanted % SLOTS].tobytes()
    message = replay_pb2.Batch(
        keys=np.array([keys[number][anchor] for number, anchor in picked]).tobytes(),
        probabilities=np.ones(len(picked)).tobytes(),
        weights=np.ones(len(picked), np.float32).tobytes(),
        window_keys=np.concatenate(window_keys).tobytes(),
        before=np.array(before, np.int32).tobytes(),
        after=np.array(after, np.int32).tobytes(),
        ends=np.array(ends, np.uint8).tobytes(),
        drawable=7,
    )
    return Answered(steps, message, rows, slots)


def assert_drawn(batch: Any, columns: Columns, item: Item, made: list[PlannedEpisode], picked: list[Picked]) -> None:
    expected = [drawn(columns, item, made[number], anchor) for number, anchor in picked]
    assert set(batch) == set(expected[0])
    for name, values in batch.items():
        np.testing.assert_array_equal(values, np.stack([each[name] for each in expected]), err_msg=name, strict=True)


def check(columns: Columns, item: Item, made: list[PlannedEpisode], data: st.DataObject) -> None:
    drawable = [(number, anchor) for number, episode in enumerate(made) for anchor in anchors(columns, item, episode)]
    if not drawable:
        return
    picked = data.draw(st.lists(st.sampled_from(drawable), min_size=1, max_size=6))
    answer = answered(columns, item, made, picked)
    received = replay_pb2.SampleResponse(batch=answer.message, rows=answer.rows)
    over_wire = BatchReader(answer.steps.schema, answer.steps).sampled(received.SerializeToString(), DRAW)
    assert_drawn(over_wire, columns, item, made, picked)
    named = replay_pb2.SampleResponse(batch=answer.message)
    files: Any = FakeFiles(answer.slots)
    copied = BatchReader(answer.steps.schema, answer.steps).sampled(named.SerializeToString(), DRAW, files)
    assert_drawn(copied, columns, item, made, picked)
    assert copied is not None
    assert copied.drawable == 7
    assert files.checked[0].tobytes() == answer.message.window_keys


@given(transitions(), episodes(), st.data())
def test_transitions_are_what_the_oracle_builds(
    config: tuple[Columns, Transitions], made: list[PlannedEpisode], data: st.DataObject
) -> None:
    check(*config, made, data)


@given(sequences(), episodes(), st.data())
def test_sequences_are_what_the_oracle_builds(
    config: tuple[Columns, Sequences], made: list[PlannedEpisode], data: st.DataObject
) -> None:
    check(*config, made, data)


ATARI: Columns = {
    **STORED,
    "obs": Stack("frame", 4),
    "next_obs": Stack("frame", 4, ahead=True),
    "n_return": Return("reward"),
}


EPISODES = [PlannedEpisode(some_rows(6, seed=1), TERMINATED), PlannedEpisode(some_rows(5, seed=2), GOES_ON)]
SEVERAL: list[list[Picked]] = [[(0, 0), (1, 2)], [(0, 4)], [(1, 0), (0, 2), (0, 2)]]
"""The steps in the batches of one reply."""


def answered_together(columns: Columns, several: list[list[Picked]]) -> tuple[list[Answered], replay_pb2.LearnResponse]:
    answers = [answered(columns, Transitions(2), EPISODES, each) for each in several]
    return answers, replay_pb2.LearnResponse(batches=[each.message for each in answers])


def learned(answers: list[Answered], reply: replay_pb2.LearnResponse, files: Any = None) -> list[Batch | None]:
    _, batches = BatchReader(answers[0].steps.schema, answers[0].steps).learned(reply.SerializeToString(), DRAW, files)
    return batches


def test_several_received_batches_are_told_apart() -> None:
    answers, reply = answered_together(ATARI, SEVERAL)
    reply.rows = b"".join(each.rows for each in answers)
    for batch, picked in zip(learned(answers, reply), SEVERAL, strict=True):
        assert_drawn(batch, ATARI, Transitions(2), EPISODES, picked)


def test_several_small_batches_are_copied_together_and_told_apart() -> None:
    answers, reply = answered_together(ATARI, SEVERAL)
    files = FakeFiles(answers[0].slots)
    for batch, picked in zip(learned(answers, reply, files), SEVERAL, strict=True):
        assert_drawn(batch, ATARI, Transitions(2), EPISODES, picked)
        assert batch is not None
        assert all(values.flags.writeable and values.flags.c_contiguous for values in batch.values())
    assert [keys.tobytes() for keys in files.checked] == [b"".join(each.message.window_keys for each in answers)]


def test_of_several_batches_only_those_overtaken_by_inserts_are_none() -> None:
    answers, reply = answered_together(ATARI, SEVERAL)
    only_of_second = answers[1].message.window_keys[-8:]
    files = FakeFiles(answers[0].slots, overtaken=only_of_second)
    first, second, third = learned(answers, reply, files)
    assert_drawn(first, ATARI, Transitions(2), EPISODES, SEVERAL[0])
    assert second is None
    assert_drawn(third, ATARI, Transitions(2), EPISODES, SEVERAL[2])


def test_each_batch_is_in_the_memory_that_was_given_for_it() -> None:
    answers, reply = answered_together(ATARI, SEVERAL)
    steps, asked = answers[0].steps, list[int]()
    buffers = ColumnBuffers(steps.sampled)

    def blank(row_count: int) -> dict[str, NDArray[Any]]:
        asked.append(row_count)
        return buffers.blank(row_count)

    files: Any = FakeFiles(answers[0].slots)
    BatchReader(steps.schema, steps, blank=blank).learned(reply.SerializeToString(), DRAW, files)
    assert asked == [len(picked) for picked in SEVERAL]


def test_large_batches_do_not_share_memory() -> None:
    wide: Columns = {**STORED, "later": Stack("frame", 50)}
    several: list[list[Picked]] = [[(0, step % 4) for step in range(8000)] for _ in range(2)]
    answers, reply = answered_together(wide, several)
    files = FakeFiles(answers[0].slots)
    batches = learned(answers, reply, files)
    for batch, picked in zip(batches, several, strict=True):
        assert_drawn(batch, wide, Transitions(2), EPISODES, picked)
    assert [keys.tobytes() for keys in files.checked] == [each.message.window_keys for each in answers]


def test_a_batch_overtaken_by_inserts_is_none() -> None:
    answer = answered(ATARI, Transitions(1), [PlannedEpisode(some_rows(3, seed=1), TERMINATED)], [(0, 1)])
    files: Any = FakeFiles(answer.slots, overtaken=answer.message.keys)
    reader = BatchReader(answer.steps.schema, answer.steps)
    named, received = replay_pb2.SampleResponse(batch=answer.message), replay_pb2.SampleResponse(batch=answer.message)
    assert reader.sampled(named.SerializeToString(), DRAW, files) is None
    received.rows = answer.rows
    assert reader.sampled(received.SerializeToString(), DRAW, files) is not None


def test_columns_that_need_no_rows_are_computed_from_the_windows() -> None:
    columns: Columns = {"reward": Column("float32", sampled=False), "discount": Discount()}
    made = [PlannedEpisode({"reward": np.zeros(4, np.float32)}, TERMINATED)]
    answer = answered(columns, Transitions(2, 0.5), made, [(0, 0), (0, 1), (0, 2)])
    assert not answer.rows
    files: Any = FakeFiles(answer.slots, overtaken=answer.message.keys)
    for mapped in (None, files):
        reader = BatchReader(answer.steps.schema, answer.steps)
        batch = reader.sampled(replay_pb2.SampleResponse(batch=answer.message).SerializeToString(), DRAW, mapped)
        assert batch is not None
        assert batch["discount"].tolist() == [0.25, 0.0, 0.0]


@pytest.mark.parametrize("field", ["window_keys", "before", "after", "ends"])
def test_windows_that_do_not_fit_together_are_a_fault_of_the_server(field: str) -> None:
    answer = answered(ATARI, Transitions(1), [PlannedEpisode(some_rows(5, seed=1), TERMINATED)], [(0, 1), (0, 3)])
    values = np.frombuffer(getattr(answer.message, field), np.uint8)
    setattr(answer.message, field, values[: len(values) // 2].tobytes())
    reader = BatchReader(answer.steps.schema, answer.steps)
    with pytest.raises(InternalServerError):
        reader.sampled(replay_pb2.SampleResponse(batch=answer.message, rows=answer.rows).SerializeToString(), DRAW)
