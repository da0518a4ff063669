"""Clients survive a server that is killed and restarted."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from replay_client import (
    Column,
    Next,
    ReplayClient,
    ServerUnavailableError,
    StepStats,
    Table,
    TableNotFoundError,
    Transitions,
)

from tests.client.conftest import COLUMNS
from tests.client.numbered import assert_whole, exhaust, row, rows
from tests.support.caller import wire_only
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

ALL_DATA_PATHS = True

StartServer = Callable[..., ServerProcess]
Connect = Callable[..., ReplayClient]
Go = Callable[[Callable[[], None]], Future[None]]


@pytest.fixture
def durable(start_server: StartServer, tmp_path: Path) -> ServerProcess:
    """A server whose tables survive a kill."""
    return start_server("--data-dir", str(tmp_path / "data"))


@pytest.fixture
def go() -> Iterator[Go]:
    """Runs a function in another thread; the future's `result` raises its error."""
    threads = ThreadPoolExecutor()
    yield threads.submit
    # After a failure, some still run. They end when their client is closed, which happens next.
    threads.shutdown(wait=False)


def wait_while_at_work(work: Future[None], holds: Callable[[], bool], what: str) -> None:
    """Like `wait_until`, but raises the error of the background work if that has failed."""
    wait_until(lambda: work.done() or holds(), what)
    if work.done():
        work.result()


def kill_and_restart(server: ServerProcess) -> None:
    server.kill()
    server.restart()


@wire_only
def test_a_writer_loses_and_doubles_nothing(durable: ServerProcess, connect: Connect, go: Go) -> None:
    table = connect(durable).create_table("t", columns=COLUMNS, capacity=1_000_000)
    enough, stop = 20_000, threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        with table.writer(block_rows=64) as writer:
            while not stop.is_set() or written < enough:
                writer.append(**row(written))
                written += 1
                if written % 1000 == 0:
                    writer.end_episode()

    work = go(write)
    for _ in range(2):
        before = table.describe().inserted
        wait_while_at_work(work, lambda before=before: table.describe().inserted > before + 2000, "rows arrived")  # type: ignore[misc]
        kill_and_restart(durable)
    before = table.describe().inserted
    wait_while_at_work(work, lambda: table.describe().inserted > before, "rows arrived again")
    stop.set()
    work.result()
    read = table.read(np.arange(table.describe().inserted))
    assert_whole(read.columns)
    np.testing.assert_array_equal(read["number"], np.arange(written))
    np.testing.assert_array_equal(read.episodes, np.arange(written) // 1000)


def test_streams_of_a_writer_lose_and_double_no_steps(durable: ServerProcess, connect: Connect, go: Go) -> None:
    table = connect(durable).create_table(
        "t", columns={"x": Column("int64"), "next": Next("x")}, capacity=1_000_000, steps=Transitions(1)
    )
    stop, written, streams = threading.Event(), 0, 8
    everyone = np.ones(streams, bool)

    def write() -> None:
        nonlocal written
        with table.writer(streams=streams, block_rows=50) as writer:
            for written in itertools.count(1):
                writer.append_all(x=np.full(streams, written))
                if written % 13 == 0 or stop.is_set():
                    writer.end_episodes(everyone, x=np.zeros(streams, int), terminated=everyone)
                if stop.is_set():
                    return

    work = go(write)
    for is_last in (False, False, True):
        before = table.describe().inserted
        wait_while_at_work(work, lambda before=before: table.describe().inserted > before + 2000, "rows arrived")  # type: ignore[misc]
        stop.set() if is_last else kill_and_restart(durable)
    work.result()
    rows = table.read(np.arange(table.describe().inserted))
    assert rows.ends is not None
    for stream in set(rows.streams.tolist()):
        steps = rows["x"][(rows.streams == stream) & (rows.ends == 0)]
        np.testing.assert_array_equal(steps, np.arange(1, written + 1))
    expected = StepStats(drawable=streams * written, pending=0, broken=0, closing=streams * -(-written // 13))
    assert table.stats().steps == expected


@wire_only
def test_single_inserts_lose_and_double_nothing(durable: ServerProcess, connect: Connect, go: Go) -> None:
    table = connect(durable).create_table("t", columns=COLUMNS, capacity=1_000_000)
    stop = threading.Event()
    keys: list[int] = []

    def insert() -> None:
        while not stop.is_set():
            keys.extend(table.insert(rows(range(len(keys), len(keys) + 10))).tolist())

    work = go(insert)
    for _ in range(2):
        before = len(keys)
        wait_while_at_work(work, lambda before=before: len(keys) > before + 200, "rows arrived")  # type: ignore[misc]
        kill_and_restart(durable)
    before = len(keys)
    wait_while_at_work(work, lambda: len(keys) > before, "rows arrived again")
    stop.set()
    work.result()
    assert keys == list(range(len(keys)))
    np.testing.assert_array_equal(table.read(keys)["number"], np.arange(len(keys)))


def test_a_sampler_goes_on_and_its_updates_hold(durable: ServerProcess, connect: Connect, go: Go) -> None:
    client = connect(durable)
    table = client.create_table("t", columns=COLUMNS, capacity=1000, alpha=1.0, epsilon=0.0)
    table.insert(rows([0]), priorities=[1.0])
    steps, done = 0, threading.Event()
    seen: list[float] = []

    def learn() -> None:
        nonlocal steps
        with table.sampler(4, beta=0.4, prefetch=3) as sampler:
            for batch in sampler:
                assert_whole(batch.columns)
                seen.append(batch.total_mass)
                steps += 1
                sampler.update_priorities([0], [1.0 + steps])
                if done.is_set():
                    break

    work = go(learn)
    for _ in range(2):
        before = steps
        wait_while_at_work(work, lambda before=before: steps > before + 50, "batches arrived")  # type: ignore[misc]
        kill_and_restart(durable)
    before = steps
    wait_while_at_work(work, lambda: steps > before + 50, "batches arrived again")
    done.set()
    work.result()
    assert seen == sorted(seen)
    assert table.read([0]).priorities.tolist() == [1.0 + steps]


@wire_only
def test_a_writer_gives_up_says_so_and_may_be_asked_to_go_on(durable: ServerProcess, connect: Connect) -> None:
    table = connect(durable).create_table("t", columns=COLUMNS, capacity=1000)
    writer = table.writer(reconnect_timeout_s=1.0)
    writer.append(**row(0))
    writer.flush()
    durable.kill()
    writer.append(**row(1))
    for _ in range(2):
        with pytest.raises(ServerUnavailableError):
            writer.flush()
    assert writer.unacknowledged_rows()["number"].tolist() == [1]
    durable.restart()
    writer.append(**row(2))
    writer.close()
    assert table.read([0, 1, 2, 3])["number"].tolist() == [0, 1, 2]


def test_a_sampler_gives_up_says_so_and_may_be_asked_to_go_on(durable: ServerProcess, connect: Connect) -> None:
    table = connect(durable).create_table("t", columns=COLUMNS, capacity=1000)
    table.insert(rows([0]), priorities=[1.0])
    with table.sampler(4, beta=0.4, reconnect_timeout_s=1.0) as sampler:
        next(sampler)
        durable.kill()
        sampler.update_priorities([0], [5.0])
        with pytest.raises(ServerUnavailableError):
            exhaust(sampler)
        in_flight = sampler.in_flight
        with pytest.raises(ServerUnavailableError):
            next(sampler)
        assert sampler.in_flight == in_flight
        durable.restart()
        next(sampler)
        sampler.flush()
    assert table.read([0]).priorities.tolist() == [5.0]


def test_a_server_that_lost_its_tables_is_not_mistaken_for_the_old_one(
    start_server: StartServer, connect: Connect
) -> None:
    server = start_server()
    table: Table = connect(server).create_table("t", columns=COLUMNS, capacity=1000)
    writer, sampler = table.writer(), table.sampler(4, beta=0.4)
    writer.append(**row(0))
    writer.flush()
    next(sampler)
    kill_and_restart(server)
    writer.append(**row(1))
    with pytest.raises(TableNotFoundError):
        writer.flush()
    with pytest.raises(TableNotFoundError):
        exhaust(sampler)
    with pytest.raises(TableNotFoundError):
        table.insert(rows([2]))
