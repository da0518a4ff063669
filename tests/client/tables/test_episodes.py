"""Reading whole episodes: of one row, and of all rows. The oracle knows only what docs/how-to/client.md says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_client import Column, InvalidArgumentError, ReplayClient, Rows, Table, TableReplacedError, Transitions

from tests.client.numbered import rows

NewTable = Callable[..., Table]
COLUMNS = {"x": Column("int64"), "y": Column("float32", 2)}
STREAMS = 3
GOES_ON, TRUNCATED, TERMINATED = range(3)

ACTIONS = st.lists(
    st.tuples(st.integers(0, STREAMS - 1), st.sampled_from(["append"] * 12 + ["truncate", "terminate", "abandon"])),
    max_size=150,
)


@dataclass
class Episode:
    """What was written of an episode: its values of x, by step, and how it ended."""

    written: list[int] = field(default_factory=list)
    end: int = GOES_ON


def write(table: Table, actions: list[tuple[int, str]]) -> list[Episode]:
    """Write episodes whose values of x are all different, and return them."""
    begun: dict[int, Episode] = {}
    episodes: list[Episode] = []
    with table.writer(streams=STREAMS) as writer:
        for x, (stream, action) in enumerate(actions):
            if action == "append" and stream not in begun:
                begun[stream] = Episode()
                episodes.append(begun[stream])
            if stream not in begun:
                continue
            if action == "append":
                begun[stream].written.append(x)
                writer[stream].append(x=x, y=[x, -x])
            elif action == "abandon":
                begun.pop(stream)
                writer[stream].abandon_episode()
            else:
                episode = begun.pop(stream)
                episode.written.append(x)
                episode.end = TERMINATED if action == "terminate" else TRUNCATED
                writer[stream].end_episode(x=x, terminated=action == "terminate")
    return episodes


def assert_is(found: Rows, episode: Episode, keys: dict[int, int]) -> None:
    """Check that rows are the live rows of an episode; ``keys`` has the key of each live row by its x."""
    live = [x for x in episode.written if x in keys]
    assert found["x"].tolist() == live
    assert found.row_keys.tolist() == [keys[x] for x in live]
    assert found.steps is not None
    assert found.steps.tolist() == [step for step, x in enumerate(episode.written) if x in keys]
    assert found.ends is not None
    assert found.ends.tolist() == [GOES_ON] * (len(live) - 1) + [episode.end]


def keys_by_x(table: Table) -> dict[int, int]:
    return {x: key for part in table.rows() for x, key in zip(part["x"].tolist(), part.row_keys.tolist(), strict=True)}


@pytest.mark.parametrize("capacity", [20, 1_000])
@settings(max_examples=25, deadline=None)
@given(actions=ACTIONS, chunk=st.sampled_from([1, 7, 1_000]), unfinished=st.booleans())
def test_episodes_are_as_they_were_written(
    client: ReplayClient, capacity: int, actions: list[tuple[int, str]], chunk: int, unfinished: bool
) -> None:
    name = f"episodes-{capacity}"
    table = client.create_table(name, columns=COLUMNS, capacity=capacity, steps=Transitions(), if_exists="reset")
    episodes = write(table, actions)
    keys = keys_by_x(table)
    live = [episode for episode in episodes if any(x in keys for x in episode.written)]

    def last_key(episode: Episode) -> int:
        return keys[episode.written[-1]]

    found = {int(each["x"][-1]): each for each in table.episodes(chunk=chunk, unfinished=unfinished)}
    due = [episode for episode in live if unfinished or episode.end]
    assert list(found) != [] or due == []
    for episode in due:
        assert_is(found.pop(episode.written[-1]), episode, keys)
    assert found == {}
    ended = [int(each["x"][-1]) for each in table.episodes(chunk=chunk, unfinished=False)]
    assert ended == [episode.written[-1] for episode in sorted(live, key=last_key) if episode.end]

    for episode in live:
        for x in {episode.written[-1], next(x for x in episode.written if x in keys)}:
            assert_is(table.episode(keys[x]), episode, keys)
    table.drop()


def test_an_episode_of_a_row_that_is_not_live_has_no_rows(new_table: NewTable) -> None:
    table = new_table(columns=COLUMNS, capacity=10, steps=Transitions())
    with table.writer() as writer:
        for x in range(30):
            writer.append(x=x, y=[x, x])
    assert [table.episode(key).batch_size for key in (-1, 0, 19, 20, 29, 30)] == [0, 0, 0, 10, 10, 0]
    assert table.episode(29, columns=["x"])["x"].tolist() == list(range(20, 30))


def test_an_episode_that_lies_far_apart_is_found(new_table: NewTable) -> None:
    """Its rows are farther apart than one search covers."""
    table = new_table(columns=COLUMNS, capacity=30_000, steps=Transitions())
    with table.writer(streams=2) as writer:
        for x in range(3):
            writer[0].append(x=x, y=[0, 0])
            writer.flush()
            for _ in range(8_000):
                writer[1].append(x=-1, y=[0, 0])
            writer.flush()
    for key in table.episode(0).row_keys.tolist():
        assert table.episode(key)["x"].tolist() == [0, 1, 2]
    assert [each.batch_size for each in table.episodes()] == [3, 24_000]


def test_a_table_without_steps_has_no_episodes(table: Table) -> None:
    table.insert(rows(range(10)))
    expected = "table: expected a table of steps, because other tables have no episodes, got .*, without steps"
    with pytest.raises(InvalidArgumentError, match=expected):
        table.episode(0)
    with pytest.raises(InvalidArgumentError, match=expected):
        table.episodes()


def test_wrong_arguments_are_refused_before_anything_is_read(new_table: NewTable) -> None:
    table = new_table(columns=COLUMNS, steps=Transitions())
    with pytest.raises(InvalidArgumentError, match="columns: expected names among x, y, got 'z'"):
        table.episode(0, columns=["z"])
    with pytest.raises(InvalidArgumentError, match="columns: expected names among x, y, got 'z'"):
        table.episodes(columns=["z"])
    with pytest.raises(InvalidArgumentError, match="chunk: expected a whole number from 1"):
        table.episodes(chunk=0)
    with pytest.raises(InvalidArgumentError, match="keys"):
        table.episode(0.5)  # type: ignore[arg-type]
    table.drop()
    new_table(name=table.name, columns=COLUMNS, steps=Transitions())
    with pytest.raises(TableReplacedError):
        table.episode(0)


def test_a_drawn_row_leads_to_its_episode(new_table: NewTable) -> None:
    table = new_table(columns=COLUMNS, steps=Transitions())
    write(table, [(stream, "append") for _ in range(20) for stream in range(STREAMS)])
    batch = table.sample(16, beta=0.4)
    for key, x in zip(batch.row_keys, batch["x"].tolist(), strict=True):
        assert np.array_equal(table.episode(key)["x"] % STREAMS, np.full(20, x % STREAMS))
