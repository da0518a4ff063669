"""Limits on requests: refusals name the limit and its setting, and requests within limits work."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2
from replay_server.backends import index_bytes
from replay_server.table.times_sampled import COUNT_BYTES

from tests.support.caller import CalledTable, Caller, LearnStream, WriteStream, make_draw, make_update
from tests.support.deadlines import wait_until
from tests.support.flow import rate_limiter, wait_for_waiting
from tests.support.refusals import refused
from tests.support.rows import WHOLE
from tests.support.server_process import ServerProcess

WRITER = b"0123456789abcdef"
ROWS = 50
SLACK = 64
"""Capacity and slack of a small table."""
ROW_BYTES = WHOLE.row_bytes + 16 + 8
WRITERS_BYTES = 4096 * (16 + 16 * 24)
CHECKSUM_BYTES = 16
PAGE_BYTES = 4096
"""Parts of a sync point: the writers' records and a header, rounded up to pages. A table has two sync points."""


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with small limits."""
    folder: Path = tmp_path_factory.mktemp("bounds")
    process = ServerProcess(
        folder / "log",
        *("--memory-dir", str(folder), "--max-rows-per-call", str(ROWS)),
        *("--max-request-mb", "2", "--max-reply-mb", "2"),
        *("--max-streams-per-connection", "3", "--max-tables", "4", "--max-columns", "5"),
        *("--max-table-bytes", "4MB", "--max-bytes", "7500KB"),
        forked=True,
    )
    yield process
    assert process.terminate() == 0
    assert "Traceback" not in process.log()


@pytest.fixture
def small(small_server: ServerProcess) -> Iterator[Caller]:
    """A caller of that server, which has no tables."""
    with Caller(small_server.address) as caller:
        yield caller
        for name in caller.table_names():
            caller.table(name).drop()


@dataclass(frozen=True)
class Case:
    """A call with ``rows`` rows or keys."""

    what: str
    call: Callable[[CalledTable, int], object]


def _learn(table: CalledTable, **request: object) -> None:
    stream = LearnStream(table)
    stream.ask(**request)
    stream.close()


def _write(table: CalledTable, rows: int) -> None:
    stream = WriteStream(table, WRITER)
    stream.write(np.arange(rows), 1)
    stream.close()


CASES = [
    Case("Insert", lambda table, rows: table.stub.Insert(table.insert_request(np.arange(rows)))),
    Case("Write", _write),
    Case("Sample", lambda table, rows: table.sample(rows)),
    Case("Read", lambda table, rows: table.read(np.zeros(rows))),
    Case("UpdatePriorities", lambda table, rows: table.update(np.zeros(rows), np.ones(rows))),
    Case("Learn, update", lambda table, rows: _learn(table, update=make_update(np.zeros(rows), np.ones(rows)))),
    Case("Learn, draw", lambda table, rows: _learn(table, draw=make_draw(rows))),
    Case("Learn, batches", lambda table, rows: _learn(table, draw=make_draw(1), batches=rows)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_rows_of_one_call(small: Caller, case: Case) -> None:
    table = small.create(capacity=40)
    table.insert([1, 2, 3])
    inserts = case.what in ("Insert", "Write")
    bound, most, setting = "rows of one call", ROWS, "max_rows_per_call of the server"
    if inserts:
        bound, most, setting = "rows of one insert", SLACK, "slots - capacity of the table"
    case.call(table, most)
    before = table.state()
    with refused("TOO_LARGE", bound=bound, limit=most, got=most + 1) as refusal:
        case.call(table, most + 1)
    assert setting in refusal.metadata["setting"]
    assert table.state() == before


def test_streams_of_one_client(small: Caller, small_server: ServerProcess) -> None:
    table = small.create()
    table.insert([1])
    streams = [LearnStream(table), LearnStream(table)]
    streams[0].ask(draw=make_draw(1))
    streams[1].ask(draw=make_draw(1))
    writer = WriteStream(table, WRITER)
    writer.write([1], 1)
    fourth = LearnStream(table)
    fourth.send(draw=make_draw(1))
    with refused("TOO_LARGE", bound="streams of one connection", limit=3, got=4) as refusal:
        fourth.receive()
    assert "max_streams_per_connection" in refusal.metadata["setting"]
    # The limit is per client, and closing a connection makes room.
    with Caller(small_server.address) as other:
        LearnStream(table.through(other)).ask(draw=make_draw(1))
    streams[0].close()
    assert list(streams[0].call) == []
    LearnStream(table).ask(draw=make_draw(1))


def test_tables(small: Caller) -> None:
    for number in range(4):
        small.create(f"t{number}", capacity=1)
    with refused("TOO_LARGE", bound="tables", limit=4, got=5) as refusal:
        small.create("t4", capacity=1)
    assert "max_tables" in refusal.metadata["setting"]
    small.create("t3", capacity=1)  # it already exists
    small.table("t0").drop()
    small.create("t4", capacity=1)


def test_columns(small: Caller) -> None:
    def schema(columns: int) -> Schema:
        return Schema({f"c{number}": Column("bool") for number in range(columns)})

    small.create(schema=schema(5))
    with refused("TOO_LARGE", bound="columns of a table", limit=5, got=6) as refusal:
        small.create(schema=schema(6))
    assert "max_columns" in refusal.metadata["setting"]


def test_bytes_of_a_row(small: Caller) -> None:
    small.create(capacity=1, schema=Schema({"x": Column("uint8", (1 << 14,))}))
    with refused("TOO_LARGE", bound="bytes of a row") as refusal:
        small.create(capacity=1, schema=Schema({"x": Column("uint8", (2 << 20,))}))
    assert "max_reply_mb" in refusal.metadata["setting"]
    longest = int(refusal.metadata["limit"])
    assert longest > 15 * (2 << 20) // 16


def test_bytes_of_a_message(small: Caller) -> None:
    table = small.create()
    long = replay_pb2.ReadRequest(table=table.name, keys=bytes((2 << 20) + 8))
    with refused("TOO_LARGE", bound="bytes of a request", limit=2 << 20, got=long.ByteSize()) as refusal:
        small.stub.Read(long, timeout=30)
    assert "max_request_mb" in refusal.metadata["setting"]


def test_bytes_of_one_table_and_of_all(small: Caller) -> None:
    slots = 10_000 + 156
    size = WRITERS_BYTES + slots * (ROW_BYTES + COUNT_BYTES) + index_bytes("sum_tree", slots)
    small.create("first", capacity=10_000)
    with refused("TOO_LARGE", bound="bytes of a full table", limit=4_000_000) as refusal:
        small.create("large", capacity=100_000)
    assert "max_table_bytes" in refusal.metadata["setting"]
    small.create("second", capacity=10_000)
    small.create("third", capacity=10_000)
    with refused("TOO_LARGE", bound="bytes of all tables when full", limit=7_500_000, got=4 * size) as refusal:
        small.create("fourth", capacity=10_000)
    assert "max_bytes" in refusal.metadata["setting"]
    small.table("first").drop()
    small.create("fourth", capacity=10_000)


def test_a_full_table_takes_what_it_was_counted_as(small: Caller) -> None:
    table = small.create(capacity=1000)
    for start in range(0, 2000, ROWS):
        table.insert(np.arange(start, start + ROWS))
    assert table.stats().bytes == WRITERS_BYTES + 1064 * ROW_BYTES


def test_checksums_count_too(start_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    beside = 1064 * COUNT_BYTES + index_bytes("sum_tree", 1064)
    full = WRITERS_BYTES + 2 * (WRITERS_BYTES + PAGE_BYTES) + (1000 + 64) * (ROW_BYTES + CHECKSUM_BYTES)
    flags = ("--data-dir", str(tmp_path / "data"), "--durability", "power", "--max-bytes")
    server = start_server(*flags, str(2 * (full + beside) - 1))
    with Caller(server.address) as caller:
        table = caller.create(capacity=1000)
        for start in range(0, 2000, ROWS):
            table.insert(np.arange(start, start + ROWS))
        assert table.stats().bytes == full
        with refused(
            "TOO_LARGE", bound="bytes of all tables when full", limit=2 * (full + beside) - 1, got=2 * (full + beside)
        ):
            caller.create(capacity=1000)
    server.terminate()
    with Caller(start_server(*flags, str(2 * (full + beside))).address) as caller:
        caller.create(capacity=1000)


def test_descriptors_of_tables(start_server: Callable[..., ServerProcess]) -> None:
    """Tables may use a fifth of the descriptors. If connections use the rest, only new tables are refused."""
    server = start_server("--max-connections", "500")
    schema = Schema({f"c{number}": Column("bool") for number in range(10)})
    with Caller(server.address) as caller:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (400, 400))
        first = caller.create(schema=schema)
        second = caller.create(schema=schema)
        with refused("TOO_LARGE", bound="file descriptors of all tables", limit=80, got=96):
            caller.create(schema=schema)
        second.drop()
        caller.create(schema=schema).drop()
        host, port = server.address.rsplit(":", 1)
        used = len(os.listdir(f"/proc/{server.pid}/fd"))
        with ExitStack() as open_sockets:
            for _ in range(400 - used - 3):
                # A connection is accepted once something is sent on it.
                open_sockets.enter_context(socket.create_connection((host, int(port)))).sendall(b"P")
            fds = f"/proc/{server.pid}/fd"
            wait_until(lambda: len(os.listdir(fds)) > 380, "connections have taken the descriptors")
            with refused("TOO_LARGE", bound="file descriptors left"):
                caller.create(schema=schema)
        assert first.describe().config.name == first.name


def test_a_draw_that_would_take_more_inserts_than_there_are_rows(small: Caller) -> None:
    table = small.create(capacity=20, rate_limiter=rate_limiter(1, 1.0, (0.0, 10.0)))
    with refused("TOO_LARGE", bound="rows of one draw", limit=30, got=31) as refusal:
        table.sample(31, wait_s=60.0)
    assert "error_buffer" in refusal.metadata["setting"]
    waiting = table.begin_sample(30, wait_s=60.0)
    wait_for_waiting(table, 1)
    for number in range(30):
        table.insert([number])
    assert len(waiting.result().batch.keys) == 8 * 30
