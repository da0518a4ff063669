"""Tables of steps end to end: written by streams, drawn on every path, compared with an oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from replay_client import (
    Column,
    Discount,
    InvalidArgumentError,
    LimitedError,
    Mask,
    Next,
    ReplayClient,
    Return,
    Sequences,
    Stack,
    StepStats,
    Table,
    Transitions,
)
from replay_client.torch import to_torch

from tests.client.steps.comparing import places, stored_columns
from tests.client.steps.oracle import Columns
from tests.client.steps.planned_episodes import GOES_ON, TERMINATED, TRUNCATED, PlannedEpisode, anchors, drawn

ALL_DATA_PATHS = True

NewTable = Callable[..., Table]

TRANSITIONS: Columns = {
    "frame": Column("uint8", (2, 3), sampled=False),
    "action": Column("int64"),
    "reward": Column("float32", sampled=False),
    "obs": Stack("frame", 4, "zero"),
    "next_obs": Stack("frame", 4, ahead=True),
    "next_action": Next("action"),
    "n_return": Return("reward"),
    "discount": Discount(),
}
SEQUENCES: Columns = {
    "frame": Column("uint8", (2, 3)),
    "reward": Column("float32"),
    "action": Column("int64", sampled=False),
    "stacked": Stack("frame", 3, "repeat"),
    "state": Column("float16", 4, at="start"),
    "discount": Discount(),
    "mask": Mask(),
}
STREAMS = 3


def some_rows(columns: Columns, count: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    return {
        name: (rng.normal(size=(count, *column.shape)) * 20).astype(column.dtype, casting="unsafe")
        for name, column in stored_columns(columns).items()
    }


def written(table: Table, columns: Columns, episodes: int = 6) -> dict[tuple[int, int], PlannedEpisode]:
    """Write episodes to a table, from several streams in turn; by number of the stream, and of the episode."""
    rng = np.random.default_rng(1)
    made: dict[tuple[int, int], PlannedEpisode] = {}
    with table.writer(streams=STREAMS, block_rows=7) as writer:
        for number in range(episodes):
            lengths = rng.integers(2, 12, STREAMS)
            ends = rng.integers(TRUNCATED, TERMINATED + 1, STREAMS)
            is_last = number == episodes - 1
            now = [
                PlannedEpisode(some_rows(columns, length, rng), GOES_ON if is_last else int(end))
                for length, end in zip(lengths, ends, strict=True)
            ]
            made.update({(writer[stream].number, number): episode for stream, episode in enumerate(now)})
            for step in range(lengths.max()):
                for stream, episode in enumerate(now):
                    if step < episode.steps:
                        writer[stream].append(episode.row(step))
                    elif step == episode.steps and episode.end != GOES_ON:
                        writer[stream].end_episode(episode.row(step), terminated=episode.end == TERMINATED)
    return made


def test_stats_count_rows_by_what_they_are(new_table: NewTable) -> None:
    item = Transitions(3)
    table = new_table(columns=TRANSITIONS, steps=item, backend="uniform", capacity=500)
    made = written(table, TRANSITIONS)
    closing = sum(episode.end != GOES_ON for episode in made.values())
    expected = sum(len(anchors(TRANSITIONS, item, episode)) for episode in made.values())
    rest = len(table) - closing - expected
    assert table.stats().steps == StepStats(drawable=expected, pending=rest, broken=0, closing=closing)
    assert table.describe().steps == table.steps


def test_batches_of_long_sequences_are_requested_in_messages_that_the_server_allows(new_table: NewTable) -> None:
    """Each row of a window counts: 16 batches of 32 sequences together would be 41,000 rows, and 32,768 are allowed."""
    table = new_table(columns={"x": Column("int64")}, steps=Sequences(80), backend="uniform", capacity=1000)
    with table.writer() as writer:
        for number in range(200):
            writer.append(x=number)
    with table.sampler(32, prefetch=64) as sampler:
        for _ in range(100):
            assert next(sampler)["x"].shape == (32, 80)


def test_a_refused_step_leaves_the_priority_of_an_earlier_one(new_table: NewTable) -> None:
    table = new_table(columns={"x": Column("int64")}, steps=Transitions(2), capacity=500)
    with table.writer() as writer:
        writer.append(x=0, priority=5.0)
        writer.append(x=1)
        for steps_ago in (1, 2):
            with pytest.raises(InvalidArgumentError):
                writer.append(x="two", priority=7.0, steps_ago=steps_ago)
        writer.append(x=2)
        writer.append(x=3, priority=6.0, steps_ago=2)
    assert table.read([0, 1]).priorities.tolist() == [5.0, 6.0]


def test_draws_wait_for_as_many_drawable_steps_as_the_limiter_requires(new_table: NewTable) -> None:
    table = new_table(columns={"x": Column("int64")}, steps=Transitions(3), min_size=5)
    with table.writer() as writer:
        for step in range(7):
            writer.append(x=step)
        writer.flush()
        with pytest.raises(LimitedError) as limited:
            table.sample(1, beta=0.4)
        assert {name: limited.value.metadata[name] for name in ("have", "needed")} == {"have": "4", "needed": "5"}
        writer.append(x=7)
    assert table.sample(1, beta=0.4).drawable == 5


def test_sequences_are_tensors_on_a_device(new_table: NewTable) -> None:
    item = Sequences(4, burn_in=3, period=2)
    table = new_table(columns=SEQUENCES, steps=item, backend="uniform", capacity=500)
    made = written(table, SEQUENCES)
    at = places(table)
    batch = table.sample(16)
    tensors = to_torch(batch)
    assert {name: tuple(tensor.shape[1:]) for name, tensor in tensors.items()} == {
        "frame": (7, 2, 3), "reward": (7,), "stacked": (7, 3, 2, 3), "state": (4,), "discount": (7,), "mask": (7,),
    }  # fmt: skip
    assert tensors["mask"].dtype is torch.bool
    assert tensors.drawable == batch.drawable
    with table.sampler(16, device="cpu") as sampler:
        tensors = next(sampler)
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        expected = [drawn(SEQUENCES, item, made[at[key][:2]], at[key][2]) for key in tensors.row_keys.tolist()]
        for name, values in arrays.items():
            np.testing.assert_array_equal(values, np.stack([each[name] for each in expected]), err_msg=name)
        sampler.update_priorities(tensors, torch.ones(16))


@pytest.mark.parametrize("is_of_steps", [True, False])
@pytest.mark.parametrize("terminated", ["False", np.nan, None, 2, np.array([False, False]), np.array([True])])
def test_an_end_that_is_neither_terminal_nor_not_is_refused(
    new_table: NewTable, terminated: Any, is_of_steps: bool
) -> None:
    final = {"x": 2} if is_of_steps else {}
    table = new_table(columns={"x": Column("int64")}, steps=Transitions(1) if is_of_steps else None)
    with table.writer() as writer:
        writer.append(x=1)
        for end in (writer.end_episode, writer[0].end_episode):
            with pytest.raises(InvalidArgumentError, match=r"^terminated: expected bool"):
                end(final, terminated=terminated)
        assert (writer[0].episode, writer.in_flight + writer.acknowledged) == (0, 1)
        returned = (np.bool_(False), np.float32(0.0)) + ((1, np.array(True)) if is_of_steps else ())
        for each in returned:  # by environments
            writer.append(x=1)
            writer.end_episode(final, terminated=each)  # type: ignore[arg-type]


def test_rows_of_steps_are_written_by_writers_only(new_table: NewTable) -> None:
    table = new_table(columns={"x": Column("int64")}, steps=Transitions(1), backend="uniform")
    with pytest.raises(InvalidArgumentError, match=r"use `Table\.writer`"):
        table.insert({"x": [1]})


def test_an_opened_table_knows_its_steps(client: ReplayClient, new_table: NewTable) -> None:
    made = new_table(columns=TRANSITIONS, steps=Transitions(3, 0.9), backend="uniform")
    opened = client.table(made.name)
    assert opened.steps is not None
    assert opened.steps == made.steps
    assert opened.steps.item == Transitions(3, 0.9)
    assert dict(opened.steps.derived) == {
        name: column for name, column in TRANSITIONS.items() if not isinstance(column, Column)
    }
    assert dict(opened.schema) == stored_columns(TRANSITIONS)
