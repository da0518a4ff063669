"""Queues of sequences and transitions, as docs/concepts/backpressure.md describes them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from replay_client import (
    Batch,
    Column,
    DeadlineExceededError,
    Mask,
    ReplayClient,
    ResourceExhaustedError,
    Sequences,
    Table,
    TableEmptyError,
)
from replay_proto.steps import Derived

from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

COLUMNS: dict[str, Column | Derived] = {"step": Column("int64"), "mask": Mask()}
NewQueue = Callable[..., Table]


@pytest.fixture
def new_queue(new_table: Callable[..., Table]) -> NewQueue:
    """Creates a queue of unrolls of four steps."""

    def make(**options: Any) -> Table:
        given = {"columns": COLUMNS, "steps": Sequences(length=4, period=4), "capacity": 64, **options}
        return new_table(backend="fifo", **given)

    return make


def write(table: Table, steps: range, *, ends: bool = True) -> None:
    """Write an episode of these steps. An unroll is complete with the row after its last step."""
    with table.writer() as writer:
        for step in steps:
            writer.append(step=step)
        if ends:
            writer.end_episode(step=-1)
        writer.flush()


def unrolls(batch: Batch) -> list[list[int]]:
    return [steps[mask].tolist() for steps, mask in zip(batch["step"], batch["mask"].astype(bool), strict=True)]


def test_unrolls_go_out_in_the_order_in_which_they_became_complete(new_queue: NewQueue) -> None:
    table = new_queue()
    with table.writer(streams=2) as writer:
        for step in (0, 1, 2):
            writer[0].append(step=step)
        writer.flush()
        for step in (10, 11, 12, 13, 14):
            writer[1].append(step=step)
        writer.flush()
        for step in (3, 4):
            writer[0].append(step=step)
        writer.flush()
        writer[1].end_episode(step=-1)
        writer.flush()
    assert unrolls(table.sample(2)) == [[10, 11, 12, 13], [0, 1, 2, 3]]
    assert unrolls(table.sample(1)) == [[14]]
    with pytest.raises(TableEmptyError):
        table.sample(1)


def test_a_draw_waits_for_its_last_unroll(new_queue: NewQueue) -> None:
    table = new_queue()
    write(table, range(7), ends=False)
    with pytest.raises(DeadlineExceededError, match="1 of 2 rows"):
        table.sample(2, timeout_s=0.1)
    timer = threading.Timer(0.2, write, (table, range(20, 24)))
    timer.start()
    assert unrolls(table.sample(2, timeout_s=60.0)) == [[0, 1, 2, 3], [20, 21, 22, 23]]
    timer.join()


def test_an_insert_waits_until_there_is_room(new_queue: NewQueue) -> None:
    table = new_queue(capacity=16)
    with table.writer() as writer:
        for step in range(16):
            writer.append(step=step)
        writer.flush()
        writer.append(step=16)
        with pytest.raises(DeadlineExceededError) as error:
            writer.flush(timeout_s=0.2)
        assert error.value.metadata["waited_for"] == "room"
        assert unrolls(table.sample(1)) == [[0, 1, 2, 3]]
        writer.flush(timeout_s=60.0)
    assert [each[0] for each in unrolls(table.sample(3))] == [4, 8, 12]


def test_an_actor_that_has_died_blocks_nobody_and_its_unroll_is_counted(new_queue: NewQueue) -> None:
    table = new_queue(capacity=16)
    write(table, range(100, 102), ends=False)  # and no further
    for first in range(0, 40, 4):
        write(table, range(first, first + 4))
        assert unrolls(table.sample(1, timeout_s=60.0)) == [[first, first + 1, first + 2, first + 3]]
    steps = table.stats().steps
    assert steps is not None
    assert (steps.drawable, steps.pending, steps.lost) == (0, 0, 1)


def test_a_draw_of_more_than_the_queue_holds_is_refused(new_queue: NewQueue) -> None:
    table = new_queue(capacity=32)
    with pytest.raises(ResourceExhaustedError, match=r"sequences of one draw: at most \d allowed"):
        table.sample(33, timeout_s=60.0)


def test_a_draw_is_refused_if_it_and_an_insert_wait_for_each_other(new_queue: NewQueue) -> None:
    """The rows of abandoned episodes, after an unroll that the draw was granted, fill the ring."""
    table = new_queue(capacity=16)

    def abandon(episodes: int) -> None:
        for _ in range(episodes):
            write(table, range(1), ends=False)

    write(table, range(4))
    with ThreadPoolExecutor(2) as pool:
        draw = pool.submit(table.sample, 2, timeout_s=10.0)
        wait_until(lambda: table.stats().waiting == 1, "the draw waits")
        actors = pool.submit(abandon, 200)
        refusal = draw.exception()
        assert unrolls(table.sample(1)) == [[0, 1, 2, 3]]
        actors.result()
    assert isinstance(refusal, ResourceExhaustedError)
    assert (refusal.reason, refusal.metadata["limit"], refusal.metadata["got"]) == ("TOO_LARGE", "1", "2")


def test_reading_and_statistics_take_nothing(new_queue: NewQueue) -> None:
    table = new_queue()
    write(table, range(8))
    assert table.read(range(8))["step"].tolist() == list(range(8))
    assert next(iter(table.episodes()))["step"].tolist() == [*range(8), -1]
    steps = table.stats().steps
    assert steps is not None
    assert (steps.drawable, steps.pending, steps.broken) == (2, 0, 0)
    table.sample(1)
    assert table.stats().steps.drawable == 1  # type: ignore[union-attr]
    assert len(unrolls(table.sample(1))) == 1


def test_a_sampler_delivers_all_of_them_in_order(new_queue: NewQueue) -> None:
    table = new_queue(capacity=400)
    writing = threading.Thread(target=write, args=(table, range(4_000)))
    writing.start()
    with table.sampler(5, prefetch=3, timeout_s=60.0) as sampler:
        found = [first for _ in range(200) for first in next(sampler)["step"][:, 0].tolist()]
    writing.join()
    assert found == list(range(0, 4_000, 4))


def test_a_checkpoint_has_what_was_not_delivered(start_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    server = start_server("--checkpoint-dir", str(tmp_path / "kept"))
    with ReplayClient(server.address) as client:
        table = client.create_table(
            "q", columns=COLUMNS, capacity=64, backend="fifo", steps=Sequences(length=4, period=1), max_times_sampled=2
        )
        with table.writer() as writer:
            for step in range(6):
                writer.append(step=step)
            writer.end_episode(step=-1)
        before = [unrolls(table.sample(1))[0] for _ in range(5)]  # the closing row completes three of them
        made = client.checkpoint()
    other = start_server("--restore", str(tmp_path / "kept" / made.name))
    with ReplayClient(other.address) as client:
        table = client.table("q")
        wait_until(lambda: table.size() > 0, "the table is restored")
        after = [unrolls(table.sample(1))[0] for _ in range(7)]
        with pytest.raises(TableEmptyError):
            table.sample(1)
    expected = [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5], [4, 5], [5]]
    assert before + after == [each for each in expected for _ in range(2)]
