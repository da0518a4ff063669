"""A full table that is too small for the windows of its streams says so, to draws, waiting draws and in statistics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from replay_client import ClosedError, Column, DeadlineExceededError, ReplayClient, Sequences, Table, TableEmptyError

from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

STREAMS, LENGTH = 64, 20
NEEDED = STREAMS * (LENGTH + 1)
SAID = f"{NEEDED:,} rows would hold a window of each stream, but the capacity is 1,000"
ADVICE = "use a larger capacity, shorter windows, or fewer streams at the same time"


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ReplayClient]:
    with ReplayClient(server.address) as made:
        yield made


@pytest.fixture
def crowded(client: ReplayClient) -> Iterator[Callable[[int], Table]]:
    """Makes a full table of 1,000 rows, written by a number of streams in turn."""
    made = []

    def make(streams: int) -> Table:
        table = client.create_table(
            "crowded", columns={"x": Column("int64")}, capacity=1000, steps=Sequences(LENGTH), backend="uniform"
        )
        made.append(table)
        with table.writer(streams=streams) as writer:
            for step in range(2 * 1000 // streams):
                writer.append_all(x=[step] * streams)
        return table

    yield make
    for table in made:
        table.drop()


def test_a_draw_says_that_the_capacity_is_too_small(crowded: Callable[[int], Table]) -> None:
    table = crowded(STREAMS)
    with pytest.raises(TableEmptyError, match=f"although it is full: {SAID}; .*{ADVICE}") as refused:
        table.sample(8, beta=0.4)
    metadata = {"waited_for": "windows", "have": "1000", "needed": str(NEEDED)}
    assert refused.value.metadata.items() >= metadata.items()
    with pytest.raises(DeadlineExceededError, match=f"waited 0.05 s for windows: {SAID}; .*{ADVICE}") as waited:
        table.sample(8, beta=0.4, timeout_s=0.05)
    assert waited.value.metadata.items() >= metadata.items()


def test_statistics_say_why_a_draw_waits(crowded: Callable[[int], Table]) -> None:
    table = crowded(STREAMS)
    with table.sampler(8, beta=0.4, timeout_s=5.0) as sampler:

        def draw() -> None:
            with suppress(ClosedError):
                next(sampler)

        drawing = threading.Thread(target=draw)
        drawing.start()
        wait_until(lambda: bool(table.stats().waits), "a waiting draw")
        (wait,) = table.stats().waits
    drawing.join()
    expected = f"1 learner waits for windows: {NEEDED:,} rows would hold one of each stream, the capacity is 1,000"
    assert str(wait).startswith(f"{expected}, it is too small")


def test_streams_whose_windows_fit_are_drawn(crowded: Callable[[int], Table]) -> None:
    assert crowded(1000 // (LENGTH + 1)).sample(8, beta=0.4)["x"].shape == (8, LENGTH)
