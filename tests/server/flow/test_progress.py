"""Refusals of waiting calls report progress, as text and numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from replay_proto.v1 import replay_pb2

from tests.support.caller import CalledTable, LearnStream, make_draw
from tests.support.flow import rate_limiter, wait_for_waiting
from tests.support.refusals import refused

NewTable = Callable[..., CalledTable]
WAIT_S = 0.05


@pytest.fixture
def limited(new_table: NewTable) -> CalledTable:
    """A table with two samples per insert after 1,200 rows, and an error buffer of 50 samples."""
    return new_table(capacity=5000, rate_limiter=rate_limiter(1200, 2.0, 50.0))


@pytest.fixture
def queue(new_table: NewTable) -> CalledTable:
    """A queue of 100 rows."""
    return new_table(backend="fifo")


def test_an_empty_table_says_how_many_rows_are_needed(
    new_table: NewTable, limited: CalledTable, queue: CalledTable
) -> None:
    for table, needed in ((new_table(), 1), (limited, 1200), (queue, 7)):
        with refused("TABLE_EMPTY", have=0, needed=needed):
            table.sample(7)


def test_a_draw_below_min_size_says_how_many_rows_there_are(limited: CalledTable) -> None:
    limited.insert(range(1150))
    with refused("LIMITED", waited_for="rows", have=1150, needed=1200):
        limited.sample(7)
    with refused("WAITED_TOO_LONG", waited_for="rows", have=1150, needed=1200) as refusal:
        limited.sample(7, wait_s=WAIT_S)
    assert "waited 0.05 s for rows: 1,150 of 1,200 rows" in refusal.message


def test_a_draw_on_a_stream_says_it_too(limited: CalledTable) -> None:
    limited.insert(range(1150))
    stream = LearnStream(limited)
    stream.send_message(replay_pb2.LearnRequest(table=limited.name, draw=make_draw(5, wait_s=WAIT_S), batches=2))
    with refused("WAITED_TOO_LONG", waited_for="rows", have=1150, needed=1200):
        stream.receive()


def test_a_draw_in_an_empty_table_says_that_it_waited_for_a_row(new_table: NewTable) -> None:
    with refused("WAITED_TOO_LONG", waited_for="rows", have=0, needed=1):
        new_table().sample(7, wait_s=WAIT_S)


def test_a_draw_says_how_many_samples_it_was_allowed(limited: CalledTable) -> None:
    limited.insert(range(1200))
    with refused("LIMITED", waited_for="samples", have=50, needed=64):
        limited.sample(64)
    with refused("WAITED_TOO_LONG", waited_for="samples", have=50, needed=64) as refusal:
        limited.sample(64, wait_s=WAIT_S)
    assert "50 of 64 samples allowed" in refusal.message
    first = limited.begin_sample(64)
    wait_for_waiting(limited, 1)
    with refused("WAITED_TOO_LONG", waited_for="samples", have=0, needed=3):
        limited.sample(3, wait_s=WAIT_S)  # all allowed samples are reserved for the first waiting call
    first.cancel()


def test_an_insert_says_how_many_samples_make_room_for_it(limited: CalledTable) -> None:
    limited.insert(range(1200))
    limited.sample(30)
    limited.insert(range(40), wait_s=0.0)
    with refused("LIMITED", waited_for="inserts", have=30, needed=50):
        limited.insert(range(10), wait_s=0.0)
    with refused("WAITED_TOO_LONG", waited_for="inserts", have=30, needed=50) as refusal:
        limited.insert(range(10), wait_s=WAIT_S)
    assert "30 of 50 samples drawn" in refusal.message
    limited.sample(19)
    with refused("LIMITED", waited_for="inserts", have=49, needed=50):
        limited.insert(range(10), wait_s=0.0)
    limited.sample(1)
    limited.insert(range(10), wait_s=0.0)


def test_an_insert_counts_those_that_wait_ahead_of_it(limited: CalledTable, queue: CalledTable) -> None:
    limited.insert(range(1225))
    first = limited.begin_insert(range(10))
    wait_for_waiting(limited, 1)
    for refusal, wait_s in (("LIMITED", 0.0), ("WAITED_TOO_LONG", WAIT_S)):
        with refused(refusal, waited_for="inserts", have=0, needed=2 * (10 + 3)):
            limited.insert(range(3), wait_s=wait_s)
    first.cancel()
    queue.insert(range(95))
    first = queue.begin_insert(range(10))
    wait_for_waiting(queue, 1)
    for refusal, wait_s in (("LIMITED", 0.0), ("WAITED_TOO_LONG", WAIT_S)):
        with refused(refusal, waited_for="room", have=5, needed=13):
            queue.insert(range(3), wait_s=wait_s)
    first.cancel()


def test_a_queue_says_how_many_rows_a_draw_has_and_how_many_fit(queue: CalledTable) -> None:
    queue.insert(range(95))
    with refused("LIMITED", waited_for="room", have=5, needed=8):
        queue.insert(range(8), wait_s=0.0)
    with refused("WAITED_TOO_LONG", waited_for="room", have=5, needed=8) as refusal:
        queue.insert(range(8), wait_s=WAIT_S)
    assert "room for 5 of 8 rows" in refusal.message
    queue.sample(85)
    with refused("LIMITED", waited_for="rows", have=10, needed=12):
        queue.sample(12)
    with refused("WAITED_TOO_LONG", waited_for="rows", have=10, needed=12) as refusal:
        queue.sample(12, wait_s=WAIT_S)
    assert "10 of 12 rows" in refusal.message
