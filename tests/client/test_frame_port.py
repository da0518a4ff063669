"""Calls over the server's frame port as the client makes them: what breaks there goes on over gRPC, silently."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from replay_client import Column, ReplayClient, Table
from replay_client.address import host_of
from replay_client.data_path import DataPath
from replay_client.direct import FramePort
from replay_client.frame_stream import FrameStream
from replay_proto.frames import FrameKind, frame_head

from tests.client.conftest import COLUMNS
from tests.client.numbered import assert_whole, exhaust, rows
from tests.support.caller import FRAMES
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
Connect = Callable[..., ReplayClient]


@pytest.fixture
def data_path() -> str:
    """All of this is about clients on another host."""
    return FRAMES


@pytest.fixture
def far(server: ServerProcess) -> Iterator[Table]:
    """A table of 100 rows on the shared server, called over its frame port."""
    with ReplayClient(server.address, same_host=False) as client:
        table = client.create_table(f"far-{time.monotonic_ns()}", columns=COLUMNS, capacity=1000)
        table.insert(rows(range(100)))
        yield table
        client.drop_table(table.name)


def free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def frame_port_of(table: Table) -> FramePort:
    """The way to this table."""
    found = table._data_path.calls
    assert isinstance(found, FramePort)
    return found


def elsewhere(table: Table, port: int) -> Table:
    """The table as it is to a client that is told of another port."""
    description = replace(table.describe(), frame_port=port)
    calls = FramePort(description, "127.0.0.1", "", lambda: description)
    return Table(table._link, description, data_path=DataPath(calls=calls))


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("replay:50051", "replay"),
        ("10.0.0.7:50051", "10.0.0.7"),
        ("replay.example.com:1", "replay.example.com"),
        ("[::1]:50051", "::1"),
        ("[fe80::1%eth0]:50051", "fe80::1%eth0"),
        ("dns:///replay:50051", "replay"),
        ("dns:replay:50051", "replay"),
        ("dns://8.8.8.8/replay:50051", "replay"),
        ("dns:///[::1]:50051", "::1"),
        ("replay", None),
        ("::1", None),
        ("unix:/tmp/socket", None),
        ("unix:///tmp/socket:1", None),
        ("ipv4:10.0.0.7:50051,10.0.0.8:50051", None),
        ("xds:///replay:50051", None),
        ("", None),
    ],
)
def test_the_host_is_that_of_a_target_that_names_one(target: str, host: str | None) -> None:
    assert host_of(target) == host


def test_calls_go_over_the_port_and_rows_with_them(far: Table) -> None:
    batch = far.sample(16, beta=0.4)
    assert_whole(batch.columns)
    assert far.update_priorities(batch, np.ones(16)).stale == 0
    with far.sampler(16, beta=0.4) as sampler:
        assert_whole(next(sampler).columns)
        assert isinstance(sampler._stream._stream, FrameStream)
    stats = far.stats()
    assert stats.sampled_in_frames == stats.sampled > 16
    assert stats.sampled_same_host == 0
    idle = frame_port_of(far)._idle
    assert {method: len(streams) for method, streams in idle.items()} == {"Sample": 1, "UpdatePriorities": 1}


def test_who_does_not_want_it_or_encrypts_calls_over_grpc(server: ServerProcess, far: Table) -> None:
    with ReplayClient(server.address, same_host=False, frame_port=False) as client:
        table = client.table(far.name)
        assert table._data_path == DataPath()
        table.sample(3, beta=0.4)
    assert far.stats().sampled_in_frames == 0


def test_on_the_servers_host_rows_are_copied_all_the_same(server: ServerProcess, far: Table) -> None:
    with ReplayClient(server.address) as client:
        client.table(far.name).sample(3, beta=0.4)
    assert (far.stats().sampled_same_host, far.stats().sampled_in_frames) == (3, 0)


def test_a_queue_is_emptied_over_the_port(connect: Connect, server: ServerProcess) -> None:
    client = connect(server)
    queue = client.create_table(f"queue-{time.monotonic_ns()}", columns=COLUMNS, capacity=100, backend="fifo")
    queue.insert(rows(range(10)))
    assert queue.sample(4, beta=0.0)["number"].tolist() == [0, 1, 2, 3]
    assert queue.sample(6, beta=0.0)["number"].tolist() == [4, 5, 6, 7, 8, 9]
    assert queue.stats().sampled_in_frames == 10
    queue.drop()


# Memory of long answers.


@pytest.fixture
def pictures(connect: Connect, server: ServerProcess) -> Iterator[Table]:
    """A table whose batches of 8 are received straight into buffers."""
    table = connect(server).create_table(
        f"pictures-{time.monotonic_ns()}", columns={"obs": Column("uint8", (40_000,))}, capacity=300
    )
    table.insert({"obs": np.repeat(np.arange(200, dtype=np.uint8), 40_000).reshape(200, 40_000)})
    yield table
    table.drop()


def test_columns_of_a_long_answer_are_the_callers_and_its_memory_is_used_again_only_after_it(pictures: Table) -> None:
    pool = frame_port_of(pictures)._buffers._buffers
    with pictures.sampler(8, beta=0.4) as sampler:
        kept = [next(sampler) for _ in range(10)]
        for batch in kept:
            assert batch["obs"].flags.writeable
            assert (batch["obs"] == batch.row_keys[:, None]).all()
        assert len(pool) >= 10
        part = kept[3]["obs"][2, 5:9]
        key = kept[3].row_keys[2]
        before = len(pool)
        kept.clear()
        for _ in range(30):
            assert (next(sampler)["obs"] >= 0).all()
        assert len(pool) <= before + 1
        assert (part == key).all()


def test_single_calls_share_the_memory(pictures: Table) -> None:
    for _ in range(20):
        batch = pictures.sample(8, beta=0.4)
        assert (batch["obs"] == batch.row_keys[:, None]).all()
    assert len(frame_port_of(pictures)._buffers._buffers) <= 2


@pytest.mark.parametrize("size", [(1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3 << 20])
@pytest.mark.parametrize("cut", [1, 8, 9, 5000, 1 << 16, 1 << 30])
def test_a_long_answer_may_come_in_any_pieces(size: int, cut: int) -> None:
    ours, theirs = socket.socketpair()
    content = np.random.default_rng(size).bytes(size)
    data = frame_head(3) + b"abc" + frame_head(size) + content + frame_head(size) + content[::-1] + frame_head(0)

    def write() -> None:
        theirs.sendall(data[:cut])
        theirs.sendall(data[cut:])

    writing = threading.Thread(target=write)
    writing.start()
    stream = FrameStream(ours)
    assert [bytes(stream.receive(30)) for _ in range(4)] == [b"abc", content, content[::-1], b""]
    writing.join()
    stream.close()
    theirs.close()


# Nobody there, or somebody else.


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port on which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def assert_works(table: Table) -> None:
    """Every call of a learner, and a stream."""
    assert_whole(table.sample(5, beta=0.4).columns)
    assert table.update_priorities([0], [1.0]).updated == 1
    with table.sampler(5, beta=0.4) as sampler:
        assert_whole(next(sampler).columns)


def test_where_nobody_listens_calls_go_over_grpc(far: Table, dead_port: int) -> None:
    assert_works(elsewhere(far, dead_port))
    assert far.stats().sampled_in_frames == 0
    assert far.stats().sampled > 0


@pytest.mark.timed
def test_who_swallows_what_is_sent_costs_the_time_for_a_hello_once(far: Table) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        table = elsewhere(far, silent.getsockname()[1])
        began = time.monotonic()
        for _ in range(5):
            assert_works(table)
        assert 2 <= time.monotonic() - began < 3.5
    assert far.stats().sampled_in_frames == 0


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", frame_head(0, FrameKind.STATUS)])
def test_who_speaks_something_else_is_left(far: Table, said: bytes) -> None:
    def answer() -> None:
        link, _ = strange.accept()
        link.recv(1 << 16)
        link.sendall(said)
        link.close()

    with socket.create_server(("127.0.0.1", 0)) as strange:
        answering = threading.Thread(target=answer)
        answering.start()
        assert_works(elsewhere(far, strange.getsockname()[1]))
        answering.join()
    assert far.stats().sampled_in_frames == 0


def test_another_server_with_a_table_of_the_same_name_is_told_by_the_uid(
    far: Table, start_server: StartServer, connect: Connect
) -> None:
    other = connect(start_server()).create_table(far.name, columns=COLUMNS, capacity=1000)
    other.insert(rows(range(500, 600)))
    assert other.uid != far.uid
    table = elsewhere(far, other.describe().frame_port)
    assert_works(table)
    assert table.sample(50, beta=0.4)["number"].max() < 100
    assert other.stats().sampled == far.stats().sampled_in_frames == 0


# The end of the server.


@pytest.mark.parametrize("end", ["kill", "terminate"])
@pytest.mark.parametrize("keeps_port", [False, True])
def test_a_sampler_finds_the_port_again_after_a_restart(
    start_server: StartServer, connect: Connect, tmp_path: Path, end: str, keeps_port: bool
) -> None:
    port = str(free_port()) if keeps_port else "0"
    server = start_server("--data-dir", str(tmp_path / "data"), "--frame-port", port)
    table = connect(server).create_table("t", columns=COLUMNS, capacity=1000)
    table.insert(rows(range(50)))
    with table.sampler(4, beta=0.4) as sampler:
        next(sampler)
        for _ in range(3):
            before = table.describe().frame_port
            getattr(server, end)()
            server.restart()
            assert (table.describe().frame_port == before) == keeps_port
            for _ in range(6):
                assert_whole(next(sampler).columns)
            assert isinstance(sampler._stream._stream, FrameStream)
            assert_works(table)
    assert table.stats().sampled == table.stats().sampled_in_frames


def test_a_server_that_has_no_port_any_more_is_called_over_grpc(
    start_server: StartServer, connect: Connect, tmp_path: Path
) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"), "--frame-port", "0")
    table = connect(server).create_table("t", columns=COLUMNS, capacity=1000)
    table.insert(rows(range(50)))
    assert_works(table)
    server.terminate()
    server.flags = ("--memory-dir", str(tmp_path), "--data-dir", str(tmp_path / "data"))
    server.restart()
    assert_works(table)
    assert table.stats().sampled_in_frames == 0


def test_an_interrupt_amid_an_answer_leaves_the_sampler_in_step(far: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, or the stop button of a notebook, may come anywhere."""
    receive_some, parts = FrameStream._receive_some, 0

    def interrupted(stream: FrameStream, into: memoryview) -> int:
        nonlocal parts
        parts += 1
        if parts % 3 == 0:
            raise KeyboardInterrupt
        return receive_some(stream, into)

    with far.sampler(20_000, beta=0.4, prefetch=2) as sampler:
        for _ in range(5):
            with monkeypatch.context() as patch:
                patch.setattr(FrameStream, "_receive_some", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    exhaust(sampler)
            for _ in range(3):
                assert_whole(next(sampler).columns)


def test_clients_that_are_gone_before_they_are_let_in_leave_no_trace(far: Table, server: ServerProcess) -> None:
    """As health checks of load balancers are."""
    for _ in range(300):
        with socket.create_connection(("127.0.0.1", frame_port_of(far)._port)) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert far.sample(10, beta=0.4).batch_size == 10
    assert "Traceback" not in server.log()


def test_a_sampler_that_is_closed_holds_no_descriptor(far: Table) -> None:
    before = psutil.Process().num_fds()
    samplers = [far.sampler(10, beta=0.4) for _ in range(10)]
    for sampler in samplers:
        next(sampler)
        sampler.close()
    assert psutil.Process().num_fds() <= before
