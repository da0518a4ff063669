"""Writers with several streams of experience."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from replay_client import Column, InvalidArgumentError, Next, Table, TableNotFoundError, Transitions, Writer

from tests.client.numbered import assert_whole, row, rows
from tests.support.caller import DATA_PATHS

NewTable = Callable[..., Table]
MOST_THREADS = 3


def numbers_of(table: Table, writer: Writer) -> list[list[list[int]]]:
    """The numbers of the rows in a table, by stream and episode of a writer."""
    read = table.read(np.arange(table.describe().inserted))
    assert_whole(read.columns)
    found = []
    for stream in range(len(writer)):
        is_mine = read.streams == writer[stream].number
        episodes = range(int(read.episodes[is_mine].max(initial=0)) + 1)
        found.append([read["number"][is_mine & (read.episodes == episode)].tolist() for episode in episodes])
    return found


def test_rows_of_all_streams_arrive_once_and_in_their_order(table: Table) -> None:
    with table.writer(streams=3, block_rows=7) as writer:
        for number in range(60):
            writer[number % 3].append(row(number))
            if number == 19:
                writer[1].end_episode()
    assert numbers_of(table, writer) == [
        [list(range(0, 60, 3))],
        [list(range(1, 20, 3)), list(range(22, 60, 3))],
        [list(range(2, 60, 3))],
    ]


def test_a_row_for_each_stream_at_once(table: Table) -> None:
    with table.writer(streams=4, block_rows=6) as writer:
        for step in range(5):
            writer.append_all(rows(np.arange(4) + 4 * step), where=np.arange(4) != step)
            writer.end_episodes((np.arange(4) == 3) & (step == 2))
    assert numbers_of(table, writer) == [
        [[4, 8, 12, 16]],
        [[1, 9, 13, 17]],
        [[2, 6, 14, 18]],
        [[3, 7, 11], [19]],
    ]


def test_more_streams_than_rows_in_a_block(table: Table) -> None:
    with table.writer(streams=10, block_rows=4) as writer:
        writer.append_all(rows(np.arange(10)), priorities=np.arange(10.0))
    read = table.read(np.arange(10))
    assert read["number"].tolist() == read.priorities.tolist() == list(range(10))


@pytest.mark.parametrize("data_path", DATA_PATHS, indirect=True, scope="session")
def test_any_number_of_streams_has_one_connection_and_few_threads(table: Table) -> None:
    threads, connections = threading.active_count(), len(psutil.Process().net_connections("all"))
    with table.writer(streams=100) as writer:
        for _ in range(3):
            writer.append_all(rows(np.arange(100)))
            writer.flush()
            assert threading.active_count() - threads <= MOST_THREADS
            assert len(psutil.Process().net_connections("all")) - connections <= 1
    assert len({writer[stream].number for stream in range(100)}) == 100


def test_rows_that_were_not_sent_are_kept(table: Table) -> None:
    writer = table.writer(streams=2)
    table.drop()
    writer.append_all(rows([0, 1]))
    writer.append_all(rows([2, 3]))
    with pytest.raises(TableNotFoundError):
        writer.close()
    kept = writer.unacknowledged_rows()
    assert sorted(kept["number"].tolist()) == [0, 1, 2, 3]
    assert_whole(kept)


def given(count: int) -> dict[str, NDArray[Any]]:
    return rows(np.arange(count))


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda writer: writer.append_all(given(3)), "columns"),
        (lambda writer: writer.append_all(number=[1, 2]), "columns"),
        (lambda writer: writer.append_all(given(2), where=[True]), "where"),
        (lambda writer: writer.append_all(given(2), where=[0.5, 1.0]), "where"),
        (lambda writer: writer.append_all(given(2), priorities=[1.0]), "priorities"),
        (lambda writer: writer.append_all(given(2), priorities=[1.0, -1.0]), "priorities"),
        (lambda writer: writer.end_episodes([True]), "done"),
        (lambda writer: writer.end_episodes([True, False], given(2)), "columns"),
        (lambda writer: writer[0].end_episode(row(1)), "columns"),
        (lambda writer: writer[0].end_episode(priorities=[1.0]), "columns"),
    ],
)
def test_what_does_not_fit_the_streams_is_refused(table: Table, call: Callable[[Writer], None], field: str) -> None:
    with table.writer(streams=2) as writer:
        with pytest.raises(InvalidArgumentError) as refused:
            call(writer)
        assert refused.value.metadata["field"] == field
        assert writer.in_flight == 0


def test_a_stream_has_to_be_named_if_there_are_several(table: Table) -> None:
    with table.writer(streams=2) as writer:
        with pytest.raises(TypeError, match="2 streams"):
            writer.append(row(1))
        with pytest.raises(TypeError, match="2 streams"):
            writer.end_episode()
        with pytest.raises(IndexError):
            writer[2]
    with pytest.raises(InvalidArgumentError, match="streams"):
        table.writer(streams=0)


def test_an_abandoned_episode_has_no_end(new_table: NewTable) -> None:
    columns = {"x": Column("int64"), "next_x": Next("x")}
    table = new_table(columns=columns, steps=Transitions(2), backend="uniform")
    with table.writer() as writer:
        for step in range(4):
            writer.append(x=step)
        writer[0].abandon_episode()
        writer.append(x=10)
        writer.end_episode(x=11, terminated=True)
    batch = table.sample(100)
    assert set(zip(batch["x"].tolist(), batch["next_x"].tolist(), strict=True)) == {(0, 2), (1, 3), (10, 11)}


def test_a_writer_goes_on_in_the_middle_of_an_episode_after_a_reset(new_table: NewTable) -> None:
    table = new_table(columns={"x": Column("int64"), "next_x": Next("x")}, steps=Transitions(1), backend="uniform")
    with table.writer() as writer:
        writer.append(x=0)
        writer.append(x=1)
        writer.flush()
        table.reset()
        for step in range(2, 5):
            writer.append(x=step)
        writer.end_episode(x=5)
    batch = table.sample(100)
    assert set(zip(batch["x"].tolist(), batch["next_x"].tolist(), strict=True)) == {(2, 3), (3, 4), (4, 5)}
