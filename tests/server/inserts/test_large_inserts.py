"""Large inserts into a server: concurrent calls, kills and signals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Thread

import grpc
import numpy as np
import pytest
from replay_client import Column, ReplayClient, ReplayError, Table
from replay_proto.framing import Array
from replay_proto.v1 import replay_pb2, replay_pb2_grpc

from tests.support.deadlines import wait_until
from tests.support.processes import loaded_processes
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]

COLUMNS = {"number": Column("int64"), "obs": Column("float32", (1000,))}
"""Columns of rows so large that a few hundred of them are stored in a worker thread."""
ROWS = 10_000
"""40 MB: the client sends them as ten inserts."""
CAPACITY = 100_000
MOST_MS = 20.0
"""Limit on the wait of other callers."""
MOST_ROUNDS = 20


def rows_of(first: int, count: int) -> dict[str, Array]:
    """Rows with consecutive numbers, whose integrity can be checked."""
    numbers = np.arange(first, first + count)
    return {"number": numbers, "obs": np.repeat(numbers.astype(np.float32)[:, None], 1000, axis=1)}


def numbers_in(rows: dict[str, Array]) -> list[int]:
    """Numbers of received rows, after checking that each row is intact."""
    assert (rows["obs"] == rows["number"][:, None]).all(), "torn rows"
    numbers: list[int] = rows["number"].tolist()
    return numbers


@contextmanager
def draws_without_pause(server: ServerProcess, name: str) -> Iterator[None]:
    """Draw batches during the block, and check that every row is intact."""
    stop, faults = Event(), []

    def draw() -> None:
        with ReplayClient(server.address) as client:
            table = client.table(name)
            while not stop.is_set():
                try:
                    batch = table.sample(100, beta=0.4)
                    assert len(numbers_in(dict(batch))) == 100
                    table.update_priorities(batch, np.ones(100))
                except Exception as error:
                    faults.append(error)

    drawing = Thread(target=draw)
    drawing.start()
    yield
    stop.set()
    drawing.join()
    assert faults == []


def test_large_and_small_inserts_at_once_are_all_whole(start_server: StartServer) -> None:
    server = start_server()
    keys_of: dict[int, list[int]] = {}

    def insert(first: int, count: int) -> None:
        with ReplayClient(server.address) as client:
            mine = client.table("large")
            for start in range(first, first + 3 * count, count):
                keys_of[start] = mine.insert(rows_of(start, count)).tolist()

    sizes = (ROWS // 2, ROWS // 4, 1, 7)
    threads = [Thread(target=insert, args=(10**6 * (1 + at), size)) for at, size in enumerate(sizes)]
    with ReplayClient(server.address) as client:
        table = client.create_table("large", columns=COLUMNS, capacity=CAPACITY)
        table.insert(rows_of(0, 1))
        with draws_without_pause(server, "large"):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(table) == 1 + 3 * sum(sizes)
        for start, keys in keys_of.items():
            assert numbers_in(dict(table.read(keys))) == list(range(start, start + len(keys)))
        assert len({key for keys in keys_of.values() for key in keys}) == 3 * sum(sizes)


def test_a_writers_stream_takes_blocks_of_megabytes(start_server: StartServer) -> None:
    with ReplayClient(start_server().address) as client:
        table = client.create_table("wide", columns={"obs": Column("float32", (50_000,))}, capacity=6400)
        with table.writer(block_rows=6000) as writer:  # the maximum of one request is sent at a time
            for number in range(60):
                writer.append(obs=np.full(50_000, number, np.float32))
        obs = table.read(np.arange(60))["obs"]
        assert (obs == np.arange(60)[:, None]).all()


def insert_until_it_ends(table: Table, first: int) -> None:
    """Insert rows until the server dies."""
    with suppress(ReplayError):
        table.insert(rows_of(first, ROWS), timeout_s=30)


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_server_killed_amid_one_comes_back_with_whole_rows(
    start_server: StartServer, tmp_path: Path, durability: str
) -> None:
    server, seen = start_server("--data-dir", str(tmp_path / "data"), "--durability", durability), 0
    with ReplayClient(server.address) as client:
        client.create_table("large", columns=COLUMNS, capacity=CAPACITY, backend="rank")
    for attempt in range(3):
        with ReplayClient(server.address) as client, ReplayClient(server.address) as other:
            inserting = Thread(target=insert_until_it_ends, args=(client.table("large"), seen))
            watched = other.table("large")
            inserting.start()
            wait_until(lambda watched=watched, seen=seen: watched.size() > seen, "the first rows are live")  # type: ignore[misc]
            at_least = watched.size()
            time.sleep(0.02 * attempt)
            server.kill()
            client.close()
            inserting.join()
        server.restart()
        with ReplayClient(server.address) as client:
            table = client.table("large")
            seen = table.size()
            assert seen >= at_least, "rows that were live are lost"
            assert numbers_in(dict(table.read(np.arange(seen)))) == list(range(seen))


def test_a_server_that_ends_amid_one_ends_well(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"), "--drain-s", "0")
    with ReplayClient(server.address) as client, ReplayClient(server.address) as other:
        client.create_table("large", columns=COLUMNS, capacity=CAPACITY, backend="rank")
        inserting = Thread(target=insert_until_it_ends, args=(client.table("large"), 0))
        watched = other.table("large")
        inserting.start()
        wait_until(lambda: watched.size() > 0, "the first rows are live")
        assert server.terminate() == 0
        client.close()
        inserting.join()
    assert "Traceback" not in server.log()
    server.restart()
    with ReplayClient(server.address) as client:
        table = client.table("large")
        assert numbers_in(dict(table.read(np.arange(table.size())))) == list(range(table.size()))


# How long others wait.


def _probe(address: str, names: list[str], pipe: Connection) -> None:
    """Call without pauses between two messages on the pipe, and send the duration of each call in milliseconds."""
    with ReplayClient(address) as client:
        tables = [client.table(name) for name in names]
        calls = [client.tables, *(lambda table=table: table.sample(32, beta=0.4) for table in tables)]
        for make in calls:
            make()
        pipe.send("ready")
        while pipe.recv() == "begin":
            took = []
            while not pipe.poll():
                for make in calls:
                    began = time.perf_counter()
                    make()
                    took.append(1e3 * (time.perf_counter() - began))
            pipe.recv()
            pipe.send(took)


def longest_calls_ms(
    server: ServerProcess, names: list[str], work: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """Longest call of another client to these tables, in rounds without and with the work.

    There are rounds until one is within the limit: other programs lengthen calls in some, a server that blocks in all.
    """
    context = loaded_processes()
    here, there = context.Pipe()
    probe = context.Process(target=_probe, args=(server.address, names, there))
    probe.start()
    assert here.recv() == "ready"

    def longest_ms(doing: Callable[[], object]) -> float:
        here.send("begin")
        doing()
        here.send("end")
        return float(max(here.recv()))

    idle: list[float] = []
    busy: list[float] = []
    while len(busy) < MOST_ROUNDS and not (busy and min(busy) <= MOST_MS + min(idle)):
        idle.append(longest_ms(lambda: time.sleep(0.7)))
        busy.append(longest_ms(work))
    here.send("stop")
    probe.join()
    return idle, busy


@pytest.mark.timed
def test_nobody_waits_long_for_an_insert_of_200_mb(start_server: StartServer, tmp_path: Path) -> None:
    """The table has the highest cost per row: it has checksums and is stored on disk."""
    server = start_server("--data-dir", str(tmp_path / "data"), "--durability", "power")
    with ReplayClient(server.address) as client:
        table = client.create_table("large", columns=COLUMNS, capacity=CAPACITY)
        other = client.create_table("other", columns=COLUMNS, capacity=1000)
        rows = rows_of(0, 200_000_000 // 4008)
        for each in (table, other):
            each.insert(rows_of(0, 500))
        idle, busy = longest_calls_ms(server, ["large", "other"], lambda: table.insert(rows))
    assert min(busy) <= MOST_MS + min(idle), f"idle {idle}, during inserts {busy}"


@pytest.mark.timed
def test_nobody_waits_long_for_the_largest_request(start_server: StartServer) -> None:
    """Any program may send it, and gRPC assembles it on the event loop."""
    server = start_server()
    with ReplayClient(server.address) as client, grpc.insecure_channel(server.address) as channel:
        for name in ("large", "other"):
            client.create_table(name, columns=COLUMNS, capacity=4 * CAPACITY).insert(rows_of(0, 500))
        count = 2000  # 8.0 MB of the allowed 8 MiB
        request = replay_pb2.InsertRequest(
            table="large", insertion=replay_pb2.Insertion(row_count=count), rows=bytes(4008 * count)
        )
        stub = replay_pb2_grpc.ReplayServiceStub(channel)

        def insert() -> None:
            for _ in range(5):
                stub.Insert(request)

        idle, busy = longest_calls_ms(server, ["large", "other"], insert)
    assert min(busy) <= MOST_MS + min(idle), f"idle {idle}, during inserts {busy}"
