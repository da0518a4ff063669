"""A network that delays, stalls and resets: the client library recovers, and nothing is lost or duplicated."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from replay_client import DeadlineExceededError, ReplayClient, ServerUnavailableError, Table

from tests.client.conftest import COLUMNS
from tests.client.numbered import assert_whole, row, rows
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess
from tools.faults.proxy import Proxy

DURATION_S = 4.0


@pytest.fixture
def proxy(start_server: Callable[..., ServerProcess]) -> Iterator[Proxy]:
    """A proxy in front of a separate server."""
    with Proxy(start_server("--no-same-host").port) as made:
        yield made


@pytest.fixture
def client(proxy: Proxy) -> Iterator[ReplayClient]:
    """A client that connects through the proxy."""
    with ReplayClient(proxy.address) as made:
        yield made


def write(table: Table, stop: threading.Event) -> int:
    """Write numbered rows until told to stop; return their number."""
    number = 0
    with table.writer(block_rows=32, reconnect_timeout_s=30.0) as writer:
        while not stop.is_set():
            writer.append(**row(number))
            number += 1
    return number


def insert(table: Table, stop: threading.Event) -> list[int]:
    """Insert numbered rows until told to stop; return their keys."""
    keys: list[int] = []
    while not stop.is_set():
        keys += table.insert(rows(range(len(keys), len(keys) + 10))).tolist()
    return keys


def learn(table: Table, stop: threading.Event) -> int:
    """Draw batches, check them and set priorities until told to stop; return their number."""
    with table.sampler(16, beta=0.4, timeout_s=20.0, reconnect_timeout_s=30.0) as sampler:
        for steps, batch in enumerate(sampler):
            assert_whole(batch.columns)
            sampler.update_priorities(batch, np.ones(len(batch.row_keys)))
            if stop.is_set():
                return steps
    raise AssertionError("a sampler has no end")


def problem(proxy: Proxy, duration_s: float) -> None:
    """Break the network at random, in all ways."""
    rng = random.Random(3)
    deadline = time.monotonic() + duration_s
    while time.monotonic() < deadline:
        proxy.delay_s = rng.choice([0.0, 0.0, 0.01, 0.05])
        time.sleep(rng.uniform(0.02, 0.3))
        match rng.randrange(4):
            case 0:
                proxy.cut()
                time.sleep(rng.uniform(0.02, 0.3))
                proxy.repair()
            case 1:
                proxy.refuses = True
                proxy.reset()
                time.sleep(rng.uniform(0.02, 0.3))
                proxy.refuses = False
            case _:
                proxy.reset()
    proxy.delay_s = 0.0


def test_nothing_is_lost_or_doubled_over_a_bad_network(proxy: Proxy, client: ReplayClient) -> None:
    tables = [client.create_table(name, columns=COLUMNS, capacity=1_000_000) for name in ("written", "inserted")]
    stop = threading.Event()
    with ThreadPoolExecutor() as threads:
        written = threads.submit(write, tables[0], stop)
        inserted = threads.submit(insert, tables[1], stop)
        learned = threads.submit(learn, tables[0], stop)
        try:
            problem(proxy, DURATION_S)
        finally:
            stop.set()
    count, keys = written.result(), inserted.result()
    assert min(count, len(keys), learned.result()) > 0
    assert proxy.connections > 5
    np.testing.assert_array_equal(tables[0].read(np.arange(count + 1))["number"], np.arange(count))
    assert tables[0].describe().inserted == count
    assert keys == list(range(len(keys)))
    assert tables[1].describe().inserted == len(keys)
    np.testing.assert_array_equal(tables[1].read(keys)["number"], np.arange(len(keys)))


def test_a_network_that_lets_nothing_through_is_given_up_on_in_time(proxy: Proxy, client: ReplayClient) -> None:
    table = client.create_table("t", columns=COLUMNS, capacity=1000)
    table.insert(rows([0]))
    proxy.cut()
    began = time.monotonic()
    with pytest.raises((DeadlineExceededError, ServerUnavailableError)):
        table.insert(rows([1]), timeout_s=1.0)
    assert time.monotonic() - began < 5.0
    proxy.repair()
    wait_until(lambda: table.describe().inserted >= 1, "the server answers again")
    table.insert(rows([2]))
    numbers = table.read(np.arange(4))["number"].tolist()
    assert numbers in ([0, 2], [0, 1, 2])
