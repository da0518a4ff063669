"""Writers send less often to a server that has many of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from replay_client import ReplayClient, Table
from replay_client._writing import outbox
from replay_server.rpc.handlers.inserts import MESSAGES_PER_S, WriterPace

from benchmarks.fleet import LeanWriter
from benchmarks.workloads import CARTPOLE
from tests.client.numbered import row
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

FLEET = 150
"""Writers that ask a server for 150 messages per 0.1 s, which is three times as many as it wants."""


def test_the_pace_follows_the_writers_of_the_last_seconds() -> None:
    pace = WriterPace()
    asked = [pace.delay_s(writer, 10.0) for writer in (1, 2, 2, 3)]
    assert asked == [1 / MESSAGES_PER_S, 2 / MESSAGES_PER_S, 2 / MESSAGES_PER_S, 3 / MESSAGES_PER_S]
    assert pace.delay_s(1, 11.9) == 3 / MESSAGES_PER_S
    assert pace.delay_s(1, 12.0) == 1 / MESSAGES_PER_S
    assert pace.delay_s(4, 14.0) == 1 / MESSAGES_PER_S


def test_a_row_waits_a_short_time_if_the_server_is_idle(new_table: Callable[..., Table]) -> None:
    table = new_table()
    with table.writer(max_delay_s=3600.0) as writer:
        writer.append(**row(1))
        wait_until(lambda: writer.acknowledged == 1, "the row was acknowledged")


@contextmanager
def fleet(address: str) -> Iterator[list[LeanWriter]]:
    """Writers at work in another thread."""
    loop, stop, writers = asyncio.new_event_loop(), asyncio.Event(), list[LeanWriter]()

    async def write() -> None:
        writers.extend(LeanWriter(address) for _ in range(FLEET))
        tasks = [asyncio.create_task(writer.write_steadily(10 / outbox.IDLE_DELAY_S)) for writer in writers]
        await stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            await writer.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(write()))
    thread.start()
    try:
        yield writers
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def test_rows_wait_longer_among_many_writers(
    start_server: Callable[..., ServerProcess], connect: Callable[..., ReplayClient]
) -> None:
    client = connect(start_server())
    table = client.create_table(CARTPOLE.name, columns=CARTPOLE.columns, capacity=100_000)
    values = {name: values[0] for name, values in CARTPOLE.rows(1, np.random.default_rng(0)).items()}

    def time_until_acknowledged() -> float:
        writer.append(values)
        writer.end_episode()
        began, last = time.monotonic(), writer.acknowledged + writer.in_flight
        wait_until(lambda: writer.acknowledged == last, "the row was acknowledged")
        return time.monotonic() - began

    with table.writer() as writer, fleet(client.address) as others:
        wait_until(lambda: any(other.delay_s >= FLEET / MESSAGES_PER_S for other in others), "the server asked for it")
        # Larger blocks are only asked for while the fleet is active, which this machine may not always allow.
        wait_until(lambda: time_until_acknowledged() > 2.5 * outbox.IDLE_DELAY_S, "the server asked this writer")
    with table.writer(max_delay_s=0.0) as writer, fleet(client.address):
        writer.append(values)
        wait_until(lambda: writer.acknowledged == 1, "the row was acknowledged")
