"""Whoever waits for long says for what, in one line of the log and in the error of a time limit."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable

import pytest
from replay_client import DeadlineExceededError, Table, aio
from replay_client._transport import long_waits

from tests.client.numbered import row, rows
from tests.support.deadlines import PATIENCE_S, wait_until
from tests.support.server_process import ServerProcess

ALL_DATA_PATHS = True
pytestmark = pytest.mark.usefixtures("waits_are_soon_long")

NewTable = Callable[..., Table]


@pytest.fixture
def limited(new_table: NewTable) -> Table:
    """A table whose rate limiter allows no more inserts."""
    table = new_table(samples_per_insert=1.0, error_buffer=(-2.0, 4.0), min_size=1)
    table.insert(rows(range(4)))
    return table


def test_a_flush_that_times_out_says_what_an_insert_says(limited: Table) -> None:
    with pytest.raises(DeadlineExceededError) as of_insert:
        limited.insert(rows([4]), timeout_s=0.1)
    writer = limited.writer()
    writer.append(**row(4))
    wait_until(lambda: bool(limited.stats().waits), "the row waits on the server")
    with pytest.raises(DeadlineExceededError) as of_flush:
        writer.flush(timeout_s=0.1)
    assert dict(of_flush.value.metadata) == dict(of_insert.value.metadata)
    assert of_flush.value.reason == of_insert.value.reason
    assert of_flush.value.message.startswith(of_insert.value.message)
    assert "1 rows of table" in of_flush.value.message
    limited.sample(2, beta=0.4)
    writer.close()


def test_a_full_queue_says_so(new_table: NewTable, said: Callable[[], list[str]]) -> None:
    table = new_table(capacity=4, backend="fifo")
    table.insert(rows(range(4)))
    with table.writer(block_rows=1, max_blocks_in_flight=1) as writer:
        writer.append(**row(4))

        def append_two() -> None:
            writer.append(**row(5))
            writer.append(**row(6))

        waiting = threading.Thread(target=append_two)
        waiting.start()
        wait_until(lambda: bool(said()), "the wait is logged")
        (line,) = said()
        assert line.startswith(f"a writer of table '{table.name}'")
        assert "for room: room for 0 of 1 rows; the queue is full until rows are drawn" in line
        table.sample(4, beta=0.0)
        waiting.join()
    assert len(said()) == 1


def test_inserts_samples_and_samplers_that_wait_say_so_once(new_table: NewTable, said: Callable[[], list[str]]) -> None:
    table = new_table(min_size=10)
    with table.sampler(4, beta=0.4, timeout_s=math.inf) as sampler:
        calls = (lambda: table.sample(4, beta=0.4, timeout_s=30), lambda: next(sampler))
        waiting = [threading.Thread(target=call) for call in calls]
        for each in waiting:
            each.start()
        wait_until(lambda: len(said()) == 2, "both waits are logged")
        table.insert(rows(range(10)))
        for each in waiting:
            each.join()
    assert len(said()) == 2
    assert all("for rows: 0 of 10 rows; it has too few rows to draw" in line for line in said())


def test_a_flush_of_a_sampler_that_waits_says_so(new_table: NewTable, said: Callable[[], list[str]]) -> None:
    table = new_table(min_size=10)
    with table.sampler(4, beta=0.4, timeout_s=math.inf) as sampler:
        sampler.request()
        sampler.update_priorities([0], [1.0])
        waiting = threading.Thread(target=sampler.flush)
        waiting.start()
        wait_until(lambda: bool(said()), "the wait is logged")
        table.insert(rows(range(10)))
        waiting.join()
    (line,) = said()
    assert line.startswith(f"a flush of a sampler of table '{table.name}' waits: ")
    assert "for rows: 0 of 10 rows" in line


def test_writers_that_wait_on_an_event_loop_say_so(
    server: ServerProcess, limited: Table, said: Callable[[], list[str]]
) -> None:
    async def wait() -> None:
        async with aio.ReplayClient(server.address) as client:
            table = await client.table(limited.name)
            async with table.writer() as writer:
                await writer.append(**row(4))
                while not (await table.stats()).waits:
                    await asyncio.sleep(0.01)
                with pytest.raises(DeadlineExceededError, match=r"waited 1\.5 s for inserts: 0 of 1 samples drawn"):
                    await writer.flush(timeout_s=1.5)
                await table.sample(2, beta=0.4)

    asyncio.run(asyncio.wait_for(wait(), PATIENCE_S))
    (line,) = said()
    assert "for inserts: 0 of 1 samples drawn; its rate limiter allows no more inserts until rows are drawn" in line


def test_draws_that_wait_on_an_event_loop_say_so(
    server: ServerProcess, new_table: NewTable, said: Callable[[], list[str]]
) -> None:
    name = new_table(min_size=10).name

    async def wait() -> None:
        async with aio.ReplayClient(server.address) as client:
            table = await client.table(name)
            samplers = [table.sampler(4, beta=0.4, timeout_s=math.inf) for _ in range(2)]
            async with samplers[0] as drawn, samplers[1] as flushed:
                await flushed.request()
                await flushed.update_priorities([0], [1.0])
                waiting = (table.sample(4, beta=0.4, timeout_s=PATIENCE_S), anext(drawn), flushed.flush())
                tasks = [asyncio.ensure_future(each) for each in waiting]
                while len(said()) < len(tasks):
                    await asyncio.sleep(0.01)
                await table.insert(rows(range(10)))
                await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(wait(), PATIENCE_S))
    waiters = (
        f"a flush of a sampler of table '{name}'",
        f"a sampler of table '{name}'",
        f"the call Sample to {server.address}",
    )
    for waiter, line in zip(waiters, sorted(said()), strict=True):
        assert line.startswith(f"{waiter} waits: ")
        assert "for rows: 0 of 10 rows" in line


def test_the_thread_that_looks_after_waits_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_waits, "_IDLE_LOOKS", 1)
    with long_waits.LongWait("a test", lambda _: "for nothing"):
        thread = long_waits._watch.thread
        assert thread is not None
    wait_until(lambda: not thread.is_alive(), "the thread ends")
