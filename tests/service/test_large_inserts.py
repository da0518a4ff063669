"""Large inserts into a server's tables: with all that may hold one up, ended by a kill, and beside other calls."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Thread

import grpc
import numpy as np
import pytest
from replay_client import Column, ReplayClient
from replay_proto.framing import Array
from replay_server.defaults import DEFAULT_MAX_ROWS_PER_CALL

from tests.support.caller import CalledTable, Caller, InsertCall
from tests.support.deadlines import wait_until
from tests.support.flow import rate_limiter
from tests.support.server_process import ServerProcess

NewTable = Callable[..., CalledTable]
StartServer = Callable[..., ServerProcess]
Call = Callable[[ServerProcess], Caller]

ROWS = 100_000
"""Of 28 bytes: copied beside the loop, live in 13 parts."""
CAPACITY = 1_000_000
_in_flight: list[InsertCall] = []
"""gRPC gives up a call that nobody refers to."""
MOST_MS = 20.0
"""How long anybody else may wait."""


@contextmanager
def draws_without_pause(server: ServerProcess, table: CalledTable) -> Iterator[None]:
    """Draw and read meanwhile; every row has to be whole."""
    stop, faults = Event(), []

    def draw() -> None:
        with Caller(server.address) as caller:
            mine = table.through(caller)
            while not stop.is_set():
                try:
                    assert len(mine.sample(100).values) == 100
                    mine.update(range(50), np.ones(50))
                except AssertionError as error:
                    faults.append(error)

    drawing = Thread(target=draw)
    drawing.start()
    yield
    stop.set()
    drawing.join()
    assert faults == []


def test_large_and_small_inserts_at_once_all_get_consecutive_keys(new_table: NewTable, server: ServerProcess) -> None:
    table = new_table(capacity=CAPACITY)
    table.insert([0])
    begun: dict[int, tuple[int, int]] = {}

    def insert(first: int, count: int) -> None:
        with Caller(server.address) as caller:
            mine = table.through(caller)
            for start in range(first, first + 3 * count, count):
                keys = mine.insert(np.arange(start, start + count))
                assert keys.tolist() == list(range(keys[0], keys[0] + count))
                begun[start] = (int(keys[0]), count)

    sizes = (ROWS, ROWS // 2, 1, 7)
    threads = [Thread(target=insert, args=(10**6 * (1 + at), size)) for at, size in enumerate(sizes)]
    with draws_without_pause(server, table):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert table.describe().inserted == 1 + 3 * sum(sizes)
    assert len(begun) == 3 * len(sizes)
    for start, (key, count) in begun.items():
        assert _values(table, key, key + count) == list(range(start, start + count))


def test_a_repeat_on_another_connection_gets_the_same_keys(new_table: NewTable, server: ServerProcess) -> None:
    table = new_table(capacity=CAPACITY, backend="rank")
    writer, answers = secrets.token_bytes(16), []
    before = Thread(target=lambda: answers.append(table.insert(range(ROWS))))
    before.start()

    def insert() -> None:
        with Caller(server.address) as caller:
            answers.append(table.through(caller).insert(range(8000), writer_id=writer, sequence=1))

    threads = [Thread(target=insert) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in [before, *threads]:
        thread.join()
    assert table.describe().inserted == ROWS + 8000
    assert len({int(keys[0]) for keys in answers if len(keys) == 8000}) == 1


def test_one_is_let_in_whole_by_a_rate_limiter(new_table: NewTable) -> None:
    table = new_table(capacity=CAPACITY, rate_limiter=rate_limiter(ROWS, 1.0, (0.0, 2.0 * ROWS)))
    assert len(table.insert(range(ROWS))) == ROWS
    assert len(table.insert(range(ROWS))) == ROWS
    call = table.begin_insert(range(ROWS), wait_s=30)
    _draw(table, ROWS)
    assert call.result().keys[0].count == ROWS


def test_one_waits_for_room_in_a_queue(new_table: NewTable) -> None:
    table = new_table(capacity=64 * ROWS, backend="fifo")
    assert table.insert(range(ROWS)).tolist() == list(range(ROWS))
    assert _draw(table, ROWS) == list(range(ROWS))
    assert table.describe().size == 0


def test_a_writers_stream_takes_blocks_of_megabytes(server: ServerProcess) -> None:
    with ReplayClient(server.address) as client:
        name = secrets.token_hex(8)
        table = client.create_table(name, columns={"obs": Column("float32", (50_000,))}, capacity=6400)
        with table.writer(block_rows=20) as writer:
            for number in range(60):
                writer.append(obs=np.full(50_000, number, np.float32))
        obs = table.read(np.arange(60))["obs"]
        assert (obs == np.arange(60)[:, None]).all()
        table.drop()


def test_a_caller_who_hangs_up_leaves_whole_rows_and_a_table_that_goes_on(new_table: NewTable) -> None:
    table = new_table(capacity=CAPACITY, backend="rank")
    call = table.begin_insert(np.arange(10 * ROWS))
    wait_until(lambda: table.describe().inserted > 0, "the first rows are live")
    call.cancel()
    wait_until(lambda: table.describe().inserted == 10 * ROWS, "it went on to its end")
    assert table.insert([5]).tolist() == [10 * ROWS]


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_server_killed_amid_one_comes_back_with_whole_rows(
    start_server: StartServer, call: Call, tmp_path: Path, durability: str
) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"), "--durability", durability)
    table = call(server).create(capacity=CAPACITY, backend="rank")
    writer = secrets.token_bytes(16)
    seen = len(table.insert(range(5000), writer_id=writer, sequence=1))
    for attempt in range(3):
        at_least = _begin_and_see(table, seen)
        time.sleep(0.02 * attempt)
        server.kill()
        server.restart()
        table = table.through(call(server))
        seen = table.describe().inserted
        assert seen >= at_least, "rows that were live are lost"
        for first in range(0, seen, ROWS):
            stop = min(first + ROWS, seen)
            assert _values(table, first, stop) == list(range(first, stop))
    assert table.insert(range(5000), writer_id=writer, sequence=1)[0] == 0
    assert table.insert(range(5), writer_id=writer, sequence=2)[0] == seen


def test_a_server_that_ends_amid_one_ends_well(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"), "--drain-s", "0")
    table = call(server).create(capacity=CAPACITY, backend="rank")
    begun = table.begin_insert(np.arange(10 * ROWS))
    wait_until(lambda: table.describe().inserted > 0, "the first rows are live")
    assert server.terminate() == 0
    with pytest.raises(grpc.RpcError):
        begun.result()
    assert "Traceback" not in server.log()
    server.restart()
    table = table.through(call(server))
    assert table.describe().inserted == 10 * ROWS


def test_a_table_dropped_amid_one_is_gone(new_table: NewTable, server: ServerProcess) -> None:
    table = new_table(capacity=CAPACITY, backend="rank")
    begun = table.begin_insert(np.arange(10 * ROWS))
    wait_until(lambda: table.describe().inserted > 0, "the first rows are live")
    table.drop()
    assert begun.result().keys[0].count == 10 * ROWS
    again = new_table(table.name)
    assert again.insert([1]).tolist() == [0]


def _values(table: CalledTable, first: int, stop: int) -> list[int]:
    """The values of these rows, of so many at a time as one call may have."""
    starts = range(first, stop, DEFAULT_MAX_ROWS_PER_CALL)
    parts = [range(start, min(start + DEFAULT_MAX_ROWS_PER_CALL, stop)) for start in starts]
    return [value for part in parts for value in table.read(part).values.tolist()]


def _draw(table: CalledTable, rows: int) -> list[int]:
    """The values of rows drawn, of so many at a time as one call may have."""
    counts = [min(DEFAULT_MAX_ROWS_PER_CALL, rows - done) for done in range(0, rows, DEFAULT_MAX_ROWS_PER_CALL)]
    return [value for count in counts for value in table.sample(count).values.tolist()]


def _begin_and_see(table: CalledTable, before: int) -> int:
    """Begin a large insert of consecutive numbers; how many rows there are once some of it are live."""
    begun = table.begin_insert(np.arange(before, before + 5 * ROWS))
    wait_until(lambda: table.describe().inserted > before, "the first rows are live")
    inserted = table.describe().inserted
    _in_flight.append(begun)
    return inserted


# How long others wait.


def _probe(address: str, names: list[str], pipe: Connection) -> None:
    """Call without pause between two words, and say how long each call took, in milliseconds."""
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


@pytest.mark.timed
@pytest.mark.parametrize("flags", [(), ("--data-dir",), ("--data-dir", "--durability", "power")], ids=" ".join)
def test_nobody_waits_long_for_an_insert_of_200_mb(
    start_server: StartServer, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """The longest call of the best of five rounds: other programs only add to it, as rounds without an insert tell."""
    chosen = [flags[0], str(tmp_path / "data"), *flags[1:]] if flags else []
    server = start_server(*chosen)
    with ReplayClient(server.address) as client:
        columns = {"obs": Column("float32", (1000,)), "action": Column("int64")}
        count = 200_000_000 // 4008
        table = client.create_table("large", columns=columns, capacity=100_000)
        other = client.create_table("other", columns=columns, capacity=1000)
        rows: dict[str, Array] = {"obs": np.ones((count, 1000), np.float32), "action": np.arange(count)}
        for each in (table, other):
            each.insert({name: column[:500] for name, column in rows.items()})
        context = get_context("spawn")
        here, there = context.Pipe()
        probe = context.Process(target=_probe, args=(server.address, ["large", "other"], there))
        probe.start()
        assert here.recv() == "ready"

        def longest_ms(work: Callable[[], object]) -> float:
            here.send("begin")
            work()
            here.send("end")
            return float(max(here.recv()))

        idle, busy = [], []
        for _ in range(5):
            idle.append(longest_ms(lambda: time.sleep(0.7)))
            busy.append(longest_ms(lambda: table.insert(rows)))
        here.send("stop")
        probe.join()
    assert min(busy) <= MOST_MS + min(idle), f"idle {idle}, during inserts {busy}"
