"""Whoever waits for long for a table on several servers says for what."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from replay_client import DeadlineExceededError, LimitedError, ReplayClient, ReplayError, Table

from tests.client.shards.conftest import COLUMNS
from tests.support.deadlines import PATIENCE_S, wait_until
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("waits_are_soon_long")

ROWS: dict[str, Any] = {"number": np.arange(8), "obs": np.zeros((8, 3), np.float32)}


@pytest.fixture
def table_of(servers: list[ServerProcess], reach: Callable[..., ReplayClient]) -> Callable[..., Table]:
    def create(**config: Any) -> Table:
        client = reach(servers[:2], wait_for_server_s=1.0)
        return client.create_table("t", columns=COLUMNS, capacity=900, **config)

    return create


def test_a_sampler_of_an_empty_table_says_so(table_of: Callable[..., Table], said: Callable[[], list[str]]) -> None:
    table = table_of()
    with table.sampler(4, beta=0.4, timeout_s=PATIENCE_S) as sampler:
        waiting = threading.Thread(target=sampler.__next__)
        waiting.start()
        wait_until(lambda: bool(said()), "the wait is logged")
        table.insert(ROWS)
        waiting.join()
    (line,) = said()
    assert re.match(r"a sampler of table 't' waits: table 't': waited \d+ s for rows: 0 of 1 rows", line)


def test_a_sampler_that_waits_for_its_rate_limiters_says_so(
    table_of: Callable[..., Table], said: Callable[[], list[str]]
) -> None:
    table = table_of(samples_per_insert=1.0, error_buffer=8.0, min_size=8)
    is_enough = threading.Event()
    with table.sampler(4, beta=0.4, timeout_s=PATIENCE_S) as sampler:

        def draw() -> None:
            while not is_enough.is_set():
                next(sampler)

        waiting = threading.Thread(target=draw)
        waiting.start()
        wait_until(lambda: len(said()) == 1, "it waits for rows")
        table.insert(ROWS)
        wait_until(lambda: len(said()) == 2, "it waits for samples")
        is_enough.set()
        table.insert(ROWS)
        waiting.join()
    start = r"a sampler of table 't' waits: table 't' on 2 servers: waited \d.* s for"
    lacks = (
        r"rows: have 0, need 8; it has too few rows to draw",
        r"samples: have \d, need 4; its rate limiters allow no",
    )
    for line, lack in zip(said(), lacks, strict=True):
        assert re.match(f"{start} {lack}", line)


def test_a_flush_of_a_sampler_names_the_servers_that_do_not_answer(
    servers: list[ServerProcess], table_of: Callable[..., Table], said: Callable[[], list[str]]
) -> None:
    table = table_of()
    keys = np.concatenate([table.insert(ROWS) for _ in range(9)])
    with table.sampler(4, beta=0.4) as sampler:
        next(sampler)
        sampler.update_priorities(keys, np.ones(len(keys)))
        os.kill(servers[1].pid, signal.SIGSTOP)
        try:
            with pytest.raises(DeadlineExceededError):
                sampler.flush(timeout_s=1.5)
        finally:
            os.kill(servers[1].pid, signal.SIGCONT)
        sampler.flush(timeout_s=PATIENCE_S)
    (line,) = said()
    assert line.startswith("a flush of a sampler of table 't' waits: waited ")
    assert f"for answers of shard 1 at {servers[1].address}" in line


def test_a_draw_says_what_it_waits_for(table_of: Callable[..., Table], said: Callable[[], list[str]]) -> None:
    table = table_of()
    waiting = threading.Thread(target=lambda: table.sample(4, beta=0.4, timeout_s=PATIENCE_S))
    waiting.start()
    wait_until(lambda: bool(said()), "the wait is logged")
    table.insert(ROWS)
    waiting.join()
    (line,) = said()
    assert re.match(r"a sampler of table 't' waits: table 't': waited \d.* s for rows: 0 of 1 rows", line)


def test_inserts_and_appends_say_what_they_wait_for(
    servers: list[ServerProcess], table_of: Callable[..., Table], said: Callable[[], list[str]]
) -> None:
    table = table_of(samples_per_insert=1.0, error_buffer=(-8.0, 8.0), min_size=1)
    with suppress(LimitedError):
        while True:
            table.insert({name: values[:1] for name, values in ROWS.items()}, timeout_s=0)
    writer = table.writer(block_rows=1, max_blocks_in_flight=1)

    def append() -> None:
        for _ in range(9):
            writer.append(number=0, obs=np.zeros(3))

    def until_dropped(call: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            with suppress(ReplayError):
                call()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    waiting = [until_dropped(append), until_dropped(lambda: table.insert(ROWS, timeout_s=PATIENCE_S))]
    wait_until(lambda: len(said()) == 2, "both waits are logged")
    table.drop()
    for each in waiting:
        each.join()
    writer.abort()
    at = "|".join(server.address for server in servers)
    starts = (rf"a writer of table 't' at ({at}) with \d unacknowledged rows", rf"the call Insert to ({at})")
    for start, line in zip(starts, sorted(said()), strict=True):
        assert re.match(rf"{start} waits: table 't': waited \d.* s for inserts: \d of \d samples drawn; its rate", line)


def test_a_writer_says_what_its_rows_wait_for(table_of: Callable[..., Table], said: Callable[[], list[str]]) -> None:
    table = table_of(samples_per_insert=1.0, error_buffer=(-8.0, 8.0), min_size=1)
    with table.writer(streams=2) as writer:
        for _ in range(20):
            writer.append_all(number=np.arange(2), obs=np.zeros((2, 3)))
        wait_until(lambda: bool(table.stats().waits), "rows wait on a server")
        with pytest.raises(DeadlineExceededError, match=r"waited [\d.]+ s for inserts") as refused:
            writer.flush(timeout_s=1.5)
        assert refused.value.metadata["waited_for"] == "inserts"
        assert any(line.startswith("a writer of table 't' on 2 servers waits: ") for line in said())
        table.drop()
        writer.abort()


def test_a_writer_says_that_no_server_is_there(
    servers: list[ServerProcess], table_of: Callable[..., Table], said: Callable[[], list[str]]
) -> None:
    table = table_of()
    with table.writer(streams=8, block_rows=1, reconnect_timeout_s=PATIENCE_S) as writer:

        def append() -> None:
            with suppress(ReplayError):  # the servers return without the table
                while True:
                    for stream in range(8):
                        writer[stream].append(number=0, obs=np.zeros(3))

        for server in servers[:2]:
            server.kill()
        appending = threading.Thread(target=append)
        appending.start()
        wanted = r"a writer of table 't' waits: none of its servers answered for \d+ s; it fails after 30 s unless"
        wait_until(lambda: any(re.match(wanted, line) for line in said()), "the wait is logged")
        for server in servers[:2]:
            server.restart()
        appending.join()
        writer.abort()
