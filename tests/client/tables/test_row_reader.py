"""Reading all rows of a table, while others write to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from importlib import util
from itertools import count
from typing import Any

import numpy as np
import pytest
from replay_client import (
    InvalidArgumentError,
    MissingExtraError,
    RowReader,
    Rows,
    ServerUnavailableError,
    Table,
    TableReplacedError,
    Transitions,
    _extras,
)
from replay_client._learning.answers import joined_rows

from tests.client.numbered import assert_whole, rows
from tests.client.steps import numbered_episodes
from tests.client.steps.numbered_episodes import episode_of, play

NewTable = Callable[..., Table]
STREAMS = 5


def joined(reader: RowReader) -> Rows:
    return joined_rows(list(reader))


@pytest.mark.parametrize("chunk", [1, 7, 100, 10_000])
def test_all_live_rows_come_in_chunks_in_the_order_of_their_keys(new_table: NewTable, chunk: int) -> None:
    table = new_table(capacity=100)
    table.insert(rows(range(130)))
    reader = table.rows(chunk=chunk)
    assert (reader.inserted, reader.total) == (130, 100)
    parts = list(reader)
    assert [part.batch_size for part in parts] == [min(chunk, 100 - first) for first in range(0, 100, chunk)]
    read = joined_rows(parts)
    assert read.row_keys.tolist() == read["number"].tolist() == list(range(30, 130))
    assert_whole(read)
    assert reader.overtaken == 0
    assert list(reader) == []


def test_an_empty_table_has_no_chunks(table: Table) -> None:
    assert list(table.rows()) == []


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_are_evicted_before_they_are_read_are_counted_and_new_ones_left_out(
    new_table: NewTable, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    table = new_table(capacity=100)
    inserted = int(rng.integers(50, 300))
    table.insert(rows(range(inserted)))
    due = list(range(max(0, inserted - 100), inserted))
    reader = table.rows(chunk=int(rng.integers(5, 30)))
    total, read, expected = len(due), list[int](), list[int]()
    while due:
        part = due[: reader._plan.chunk]
        del due[: len(part)]
        alive = [key for key in part if key >= inserted - 100]
        if alive:
            read += next(reader).row_keys.tolist()
        expected += alive
        assert read == expected
        new = int(rng.integers(0, 25))
        if new:
            table.insert(rows(range(inserted, inserted + new)))
        inserted += new
    assert list(reader) == []
    assert (reader.total, reader.overtaken) == (total, total - len(read))
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"{reader.overtaken} of {total} rows of table {table.name!r} were removed before they were read"
    ] * bool(reader.overtaken)


@pytest.fixture
def busy_table(new_table: NewTable) -> Iterator[Table]:
    """A table that a writer fills with episodes, and evicts from, during the test."""
    table = new_table(columns=numbered_episodes.COLUMNS, capacity=3_000, steps=Transitions(2))
    is_full, stop = threading.Event(), threading.Event()

    def write() -> None:
        with table.writer(streams=STREAMS, block_rows=50) as writer:
            actors = [play(writer[actor], actor) for actor in range(STREAMS)]
            for number in count():
                for actor in actors:
                    next(actor)
                if number == 2 * table.capacity // STREAMS:
                    writer.flush()
                    is_full.set()
                if stop.is_set():
                    return

    thread = threading.Thread(target=write)
    thread.start()
    is_full.wait()
    yield table
    stop.set()
    thread.join()


@pytest.mark.parametrize("order", ["key", "episode"])
def test_a_writer_that_evicts_meanwhile_leaves_whole_rows_each_once(busy_table: Table, order: str) -> None:
    reader = busy_table.rows(chunk=500, order=order)  # type: ignore[arg-type]
    read = joined(reader)
    assert read.batch_size + reader.overtaken == reader.total
    keys = np.sort(read.row_keys)
    assert (np.diff(keys) > 0).all()
    assert keys[0] >= reader.inserted - reader.total
    assert keys[-1] < reader.inserted
    assert_as_written(read)
    if order == "episode":
        assert_together(read)


@pytest.mark.parametrize("order", ["key", "episode"])
def test_rows_that_are_all_removed_before_they_are_read_are_counted(new_table: NewTable, order: str) -> None:
    table = new_table(columns=numbered_episodes.COLUMNS, steps=Transitions(2))
    with table.writer(streams=STREAMS) as writer:
        actor = play(writer[0], 0)
        for _ in range(40):
            next(actor)
    reader = table.rows(chunk=10, order=order)  # type: ignore[arg-type]
    assert reader.total >= 40
    table.reset()
    assert list(reader) == []
    assert reader.overtaken == reader.total


def assert_as_written(read: Rows) -> None:
    """Check rows of `numbered_episodes`, whose values tell actor, episode and step."""
    assert read.steps is not None
    assert read.ends is not None
    actor, rest = np.divmod(read["x"], numbered_episodes.PER_ACTOR)
    number, place = np.divmod(rest, numbered_episodes.PER_EPISODE)
    assert (place - 1 == read.steps).all()
    for row in range(read.batch_size):
        episode = episode_of(int(actor[row]), int(number[row]))
        assert read["reward"][row] == episode.rows["reward"][read.steps[row]]
        assert read.ends[row] == (episode.end if read.steps[row] == episode.steps else 0)


def assert_together(read: Rows) -> None:
    """Check that rows of an episode follow each other in order."""
    assert read.steps is not None
    same = (read.streams[1:] == read.streams[:-1]) & (read.episodes[1:] == read.episodes[:-1])
    assert (np.diff(read.steps)[same] > 0).all()
    episodes = list(zip(read.streams.tolist(), read.episodes.tolist(), strict=True))
    assert 1 + np.count_nonzero(~same) == len(set(episodes))


@pytest.mark.parametrize("chunk", [1, 13, 10_000])
def test_episodes_come_whole_and_in_order_of_their_steps(new_table: NewTable, chunk: int) -> None:
    table = new_table(columns=numbered_episodes.COLUMNS, steps=Transitions(2))
    with table.writer(streams=STREAMS, block_rows=6) as writer:
        actors = [play(writer[actor], actor) for actor in range(STREAMS)]
        for _ in range(40):
            for actor in actors:
                next(actor)
        writer[0].abandon_episode()  # it has no end, and the next one begins
        for _ in range(10):
            next(actors[1])
        writer[0].append(x=10 * numbered_episodes.PER_EPISODE + 1, reward=2.0)
    parts = list(table.rows(chunk=chunk, order="episode"))
    read = joined_rows(parts)
    assert {part.batch_size for part in parts[:-1]} <= {chunk}
    assert sorted(read.row_keys.tolist()) == list(range(len(table)))
    assert_together(read)
    by_key = table.read(read.row_keys)
    for name in by_key:
        np.testing.assert_array_equal(read[name], by_key[name])
    for name in ("priorities", "streams", "episodes", "steps", "ends"):
        np.testing.assert_array_equal(getattr(read, name), getattr(by_key, name))


def test_a_reset_meanwhile_removes_the_rest(table: Table) -> None:
    table.insert(rows(range(50)))
    reader = table.rows(chunk=20)
    next(reader)
    table.reset()
    table.insert(rows(range(50, 100)))
    assert list(reader) == []
    assert reader.overtaken == 30


def test_a_table_made_anew_meanwhile_is_another_one(new_table: NewTable, table: Table) -> None:
    table.insert(rows(range(50)))
    reader = table.rows(chunk=20)
    next(reader)
    table.drop()
    new_table(name=table.name)
    with pytest.raises(TableReplacedError):
        next(reader)
    with pytest.raises(TableReplacedError):
        table.rows()


def test_a_bar_on_standard_error_shows_the_progress(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    table.insert(rows(range(50)))
    joined(table.rows(chunk=20, progress=True))
    shown = capsys.readouterr()
    assert "50/50" in shown.err
    assert table.name in shown.err
    assert shown.out == ""


def test_what_cannot_be_read_is_said_at_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match="order: expected 'key' for a table without steps, got 'episode'"):
        table.rows(order="episode")
    with pytest.raises(InvalidArgumentError, match="order: expected 'key' or 'episode', got 'newest'"):
        table.rows(order="newest")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"chunk: expected a whole number from 1 .* got 0"):
        table.rows(chunk=0)
    monkeypatch.setattr(_extras, "find_spec", lambda name: None if name == "rich" else util.find_spec(name))
    with pytest.raises(MissingExtraError, match=r"^rich not installed; .*pip install '\.\[cli\]'$"):
        table.rows(progress=True)


def test_a_reader_goes_on_after_an_error(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.insert(rows(range(50)))
    read, calls = table.read, count()

    def read_but_once(*arguments: Any, **options: Any) -> Rows:
        if next(calls) == 1:
            raise ServerUnavailableError("away")
        return read(*arguments, **options)

    monkeypatch.setattr(table, "read", read_but_once)
    reader = table.rows(chunk=10)
    parts = [next(reader)]
    with pytest.raises(ServerUnavailableError):
        next(reader)
    parts += list(reader)
    assert joined_rows(parts)["number"].tolist() == list(range(50))
    assert list(reader) == []
