"""The client's calls over the local socket: failures fall back to gRPC silently."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2
from replay_client import (
    ClosedError,
    DeadlineExceededError,
    ForkedError,
    InvalidArgumentError,
    ReplayClient,
    ReplayError,
    ResourceExhaustedError,
    ServerUnavailableError,
    Table,
    TableDescription,
)
from replay_client._operations.server import describe
from replay_client._transport import frame_stream
from replay_client._transport.frame_stream import DirectFrames, FrameStream, SentFrames
from replay_client._transport.local_calls import FrameMethod, LocalAddress, LocalCalls
from replay_client._transport.pending import PendingRequests, Request
from replay_proto.frames import FrameKind, frame_head
from replay_proto.v1 import replay_pb2

from tests.client.conftest import COLUMNS
from tests.client.numbered import assert_whole, exhaust, row, rows
from tests.support.deadlines import PATIENCE_S, wait_until
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
Connect = Callable[..., ReplayClient]


@pytest.fixture
def data_path() -> str:
    """These tests need clients on the server's host."""
    return "same host"


@pytest.fixture
def near(server: ServerProcess) -> Iterator[Table]:
    """A table of 100 rows on the shared server, called over the socket."""
    with ReplayClient(server.address) as client:
        table = client.create_table(f"near-{time.monotonic_ns()}", columns=COLUMNS, capacity=1000)
        table.insert(rows(range(100)))
        yield table
        client.drop_table(table.name)


@pytest.fixture
def durable(start_server: StartServer, tmp_path: Path) -> ServerProcess:
    """A server with durable tables."""
    return start_server("--data-dir", str(tmp_path / "data"))


@pytest.fixture
def pair() -> Iterator[tuple[FrameStream, socket.socket]]:
    """A stream and the server's end of it."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(30)
    stream = FrameStream(ours)
    yield stream, theirs
    stream.close()
    theirs.close()


def local_calls(client: ReplayClient, table: Table) -> LocalCalls:
    """Local calls for this table."""
    found = table._data_path.calls
    assert found is not None
    return found


def sockets_here() -> int:
    """Number of sockets of this process."""
    return sum(map(_is_socket, os.listdir("/proc/self/fd")))


def _is_socket(descriptor: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    except FileNotFoundError:  # closed since it was listed
        return False


# A stream.


def test_an_answer_may_come_in_any_pieces(pair: tuple[FrameStream, socket.socket]) -> None:
    stream, theirs = pair
    frames = frame_head(3) + b"abc" + frame_head(0) + frame_head(1) + b"x"

    def write() -> None:
        for byte in frames:
            theirs.sendall(bytes([byte]))
            time.sleep(0.001)

    writing = threading.Thread(target=write)
    writing.start()
    assert [stream.receive(30), stream.receive(), stream.receive(30)] == [b"abc", b"", b"x"]
    writing.join()


def test_a_refusal_is_raised_as_its_type(pair: tuple[FrameStream, socket.socket]) -> None:
    stream, theirs = pair
    info = error_details_pb2.ErrorInfo(reason="TOO_LARGE", domain="replay.v1", metadata={"bound": "x"})
    status = status_pb2.Status(code=8, message="too much")
    status.details.add().Pack(info)
    content = status.SerializeToString()
    theirs.sendall(frame_head(len(content), FrameKind.STATUS) + content)
    with pytest.raises(ResourceExhaustedError, match="too much") as refusal:
        stream.receive(30)
    assert (refusal.value.reason, refusal.value.metadata) == ("TOO_LARGE", {"bound": "x"})


@pytest.mark.parametrize("said", [b"", frame_head(5)[:3], frame_head(5) + b"abc", b"\xff" * 20])
def test_a_connection_that_ends_or_makes_no_sense_is_a_server_that_is_away(
    pair: tuple[FrameStream, socket.socket], said: bytes
) -> None:
    stream, theirs = pair
    theirs.sendall(said)
    theirs.close()
    for _ in range(2):
        with pytest.raises(ServerUnavailableError):
            stream.receive(30)


def test_an_answer_that_does_not_come_in_time_can_be_waited_for_later(pair: tuple[FrameStream, socket.socket]) -> None:
    stream, theirs = pair
    theirs.sendall(frame_head(5) + b"ab")
    with pytest.raises(DeadlineExceededError):
        stream.receive(0.05)
    theirs.sendall(b"cde")
    assert bytes(stream.receive()) == b"abcde"


def test_whoever_cancels_ends_the_wait(pair: tuple[FrameStream, socket.socket]) -> None:
    stream, _ = pair
    threading.Timer(0.05, stream.cancel).start()
    with pytest.raises(ServerUnavailableError):
        stream.receive()
    stream.cancel()


@pytest.mark.timed
def test_a_message_that_a_server_does_not_take_in_does_not_hold_up_its_sender(
    pair: tuple[FrameStream, socket.socket],
) -> None:
    """The server reads nothing until we read its reply: this must not deadlock."""
    stream, theirs = pair
    message, answer = os.urandom(3 << 20), os.urandom(2 << 20)
    began = time.monotonic()
    stream.send(message)
    stream.send(b"another")
    assert time.monotonic() - began < 5
    got = bytearray()
    due = frame_head(len(message)) + message + frame_head(7) + b"another"

    def serve() -> None:
        theirs.sendall(frame_head(len(answer)) + answer)
        while len(got) < len(due):
            got.extend(theirs.recv(1 << 20))
        theirs.sendall(frame_head(4) + b"done")

    serving = threading.Thread(target=serve)
    serving.start()
    assert stream.receive(30) == answer
    assert stream.receive(30) == b"done"
    serving.join()
    assert got == due


def test_a_message_may_have_more_parts_than_the_system_sends_at_once(pair: tuple[FrameStream, socket.socket]) -> None:
    stream, theirs = pair
    parts = [bytes([number % 251]) * (number % 7) for number in range(5000)]
    whole = frame_head(sum(map(len, parts))) + b"".join(parts)
    sending = threading.Thread(target=stream.send_whole, args=(parts,))
    sending.start()
    received = b""
    while len(received) < len(whole):
        received += theirs.recv(1 << 16)
    sending.join()
    assert received == whole


def test_whoever_waits_for_a_reply_learns_that_the_request_could_not_be_sent(
    pair: tuple[FrameStream, socket.socket],
) -> None:
    def requests() -> Iterator[list[bytes]]:
        yield [b"abc"]
        raise MemoryError

    stream = SentFrames(pair[0], requests(), wake=lambda: None)
    with pytest.raises(MemoryError):
        stream.receive(PATIENCE_S)
    stream.close()


def test_why_the_server_ended_it_is_known_to_who_could_not_send(pair: tuple[FrameStream, socket.socket]) -> None:
    stream, theirs = pair
    content = status_pb2.Status(code=3, message="no").SerializeToString()
    theirs.sendall(frame_head(len(content), FrameKind.STATUS) + content)
    theirs.close()
    stream.send(b"x" * (1 << 20))
    with pytest.raises(InvalidArgumentError, match="no"):
        stream.receive(30)


# Calls of a table.


def test_calls_go_over_the_socket_and_rows_are_copied(near: Table) -> None:
    batch = near.sample(16, beta=0.4)
    assert_whole(batch.columns)
    assert near.update_priorities(batch, np.ones(16)).stale == 0
    with near.sampler(16, beta=0.4) as sampler:
        assert_whole(next(sampler).columns)
    assert near.stats().sampled_same_host == near.stats().sampled > 16
    idle = near._data_path.calls._idle  # type: ignore[union-attr]
    assert {method: len(streams) for method, streams in idle.items()} == {"Sample": 1, "UpdatePriorities": 1}


def test_a_refusal_keeps_the_connection(near: Table) -> None:
    near.sample(1, beta=0.4)
    before = near._data_path.calls._idle["Sample"][0]  # type: ignore[union-attr]
    for _ in range(3):
        with pytest.raises(ResourceExhaustedError):
            near.sample(1 << 40, beta=0.4)
    assert near._data_path.calls._idle["Sample"] == [before]  # type: ignore[union-attr]
    near.sample(1, beta=0.4)


def test_an_update_that_is_too_large_is_refused_as_over_grpc(near: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a message of 80 MB to a server that accepts 64 MiB."""
    monkeypatch.setattr(TableDescription, "keys_per_call", 1 << 40)  # it is not split
    keys, priorities = np.zeros(5_000_000, np.int64), np.ones(5_000_000)
    with pytest.raises(ResourceExhaustedError):
        near.update_priorities(keys, priorities)
    began = time.monotonic()
    with near.sampler(4, beta=0.4, prefetch=1) as sampler:
        next(sampler)
        sampler.update_priorities(keys, priorities)
        with pytest.raises(ResourceExhaustedError):
            exhaust(sampler)
        assert next(sampler).batch_size == 4
    assert time.monotonic() - began < 10
    assert near.update_priorities([0], [2.0]).updated == 1


def test_threads_share_a_table(near: Table) -> None:
    def work(number: int) -> int:
        for step in range(50):
            batch = near.sample(8 + number, beta=0.4)
            assert batch.batch_size == 8 + number
            assert_whole(batch.columns)
            assert batch.row_keys.tolist() == batch["number"].tolist()
            assert near.update_priorities(batch, np.full(8 + number, 1.0 + step)).stale == 0
        return 50

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 400
    stats = near.stats()
    assert stats.sampled == stats.sampled_same_host == sum(50 * (8 + number) for number in range(8))
    assert all(len(streams) <= 8 for streams in near._data_path.calls._idle.values())  # type: ignore[union-attr]


@pytest.mark.timed
def test_a_call_that_takes_too_long_says_so_and_the_next_one_works(server: ServerProcess) -> None:
    with ReplayClient(server.address, timeout_s=0.3) as client:
        table = client.create_table(f"slow-{time.monotonic_ns()}", columns=COLUMNS, capacity=1000)
        table.insert(rows([1]))
        table.sample(1, beta=0.4)
        table.update_priorities([0], [1.0])
        server.process.send_signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(DeadlineExceededError):
                table.update_priorities(np.zeros(500_000, np.int64), np.ones(500_000))
            for _ in range(3):
                with pytest.raises(DeadlineExceededError):
                    table.sample(1, beta=0.4)
            assert time.monotonic() - began < 4 * 0.3 + 1
        finally:
            server.process.send_signal(signal.SIGCONT)
        wait_until(lambda: _samples(table), "the server answers again")
        table.drop()


def _samples(table: Table) -> bool:
    try:
        return table.sample(1, beta=0.4).batch_size == 1
    except DeadlineExceededError:
        return False


def test_a_wait_for_rows_ends_as_over_grpc(near: Table) -> None:
    near.reset()
    with pytest.raises(DeadlineExceededError) as late:
        near.sample(1, beta=0.4, timeout_s=0.05)
    assert late.value.reason == "WAITED_TOO_LONG"


def test_nothing_of_a_closed_client_is_left(server: ServerProcess) -> None:
    gc.collect()
    before = sockets_here()
    client = ReplayClient(server.address)
    table = client.create_table(f"left-{time.monotonic_ns()}", columns=COLUMNS, capacity=1000)
    table.insert(rows(range(10)))
    table.sample(1, beta=0.4)
    table.update_priorities([0], [1.0])
    sampler = table.sampler(4, beta=0.4)
    next(sampler)
    assert sockets_here() >= before + 3
    sampler.close()
    del sampler
    table.drop()
    client.close()
    wait_until(lambda: sockets_here() <= before, "its sockets are closed")


def test_a_call_that_ends_after_its_client_was_closed_leaves_nothing(server: ServerProcess) -> None:
    client = ReplayClient(server.address)
    table = client.create_table(f"late-{time.monotonic_ns()}", columns=COLUMNS, capacity=1000)
    found = local_calls(client, table)
    table.insert(rows([1]))
    request = replay_pb2.SampleRequest(table=table.name, draw=replay_pb2.Draw(batch_size=1)).SerializeToString()
    table.drop()
    client.close()
    assert found.call("Sample", request, 5.0) is None  # the table was dropped, and with it the socket
    assert not any(found._idle.values())


@pytest.mark.parametrize("has_called", [False, True])
def test_closing_a_client_ends_a_call_that_waits(server: ServerProcess, near: Table, has_called: bool) -> None:
    client = ReplayClient(server.address)
    table = client.table(near.name)
    if has_called:  # then the connection comes from the pool
        table.sample(1, beta=0.4)
    near.reset()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(table.sample, 1, beta=0.4, timeout_s=PATIENCE_S)
        wait_until(lambda: near.stats().waiting == 1, "it waits")
        client.close()
        with pytest.raises(ClosedError):
            waiting.result(PATIENCE_S / 2)
    wait_until(lambda: near.stats().waiting == 0, "the server has noticed")
    assert not any(local_calls(client, table)._idle.values())


# After a fork.


def _in_a_child(near: Table, answers: multiprocessing.SimpleQueue[str]) -> None:
    try:
        near.sample(1, beta=0.4)
    except ForkedError:
        near._connection.close()
        answers.put("forked")
    os._exit(0)


@pytest.mark.filterwarnings("ignore:This process")
def test_a_child_may_not_call_and_does_not_disturb_its_parent(near: Table) -> None:
    near.sample(1, beta=0.4)
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    child = context.Process(target=_in_a_child, args=(near, answers))
    child.start()
    assert answers.get() == "forked"
    child.join()
    assert_whole(near.sample(5, beta=0.4).columns)
    assert near.stats().sampled_same_host == 6


# No server, or another one.


@pytest.fixture
def nowhere(near: Table, tmp_path: Path) -> Callable[[Path], Table]:
    """The table as seen by a client that finds another path of the socket."""

    def at(path: Path) -> Table:
        near._data_path.renew()
        found = near._session.data_path(near.describe(), partial(describe, near.name))
        found.near = near._data_path.near
        found.address = LocalAddress(replace(near.describe(), socket=str(path)))
        found.calls = LocalCalls(found.address)
        return Table(near._session, near.describe(), data_path=found)

    return at


def test_where_there_is_no_socket_calls_go_over_grpc(nowhere: Callable[[Path], Table], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "nobody"))
    for path in (tmp_path / "none", tmp_path / "no" / "folder", tmp_path / "file", tmp_path / "nobody"):
        table = nowhere(path)
        for _ in range(3):
            assert_whole(table.sample(5, beta=0.4).columns)
            assert table.update_priorities([0], [1.0]).updated == 1
        with table.sampler(5, beta=0.4) as sampler:
            assert_whole(next(sampler).columns)
    listening.close()
    stats = table.stats()
    assert stats.sampled == stats.sampled_same_host, "rows are copied all the same"


@pytest.mark.timed
def test_who_does_not_answer_a_hello_is_not_asked_again_at_once(
    nowhere: Callable[[Path], Table], tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen(100)
        found = nowhere(tmp_path / "silent")._data_path.calls
        assert found is not None
        assert found.open_stream("Learn", 0.05) is None
        began = time.monotonic()
        for _ in range(10):
            assert found.call("Sample", b"", 30.0) is None
        assert time.monotonic() - began < 0.5
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.mark.parametrize("said", [b"", b"\xff" * 8, frame_head(0, FrameKind.STATUS)])
def test_who_answers_a_hello_with_something_else_is_left(
    nowhere: Callable[[Path], Table], tmp_path: Path, said: bytes
) -> None:
    def answer() -> None:
        link, _ = strange.accept()
        link.recv(1 << 16)
        link.sendall(said)
        link.close()

    with socket.socket(socket.AF_UNIX) as strange:
        strange.bind(str(tmp_path / "strange"))
        strange.listen()
        serving = threading.Thread(target=answer)
        serving.start()
        assert_whole(nowhere(tmp_path / "strange").sample(5, beta=0.4).columns)
        serving.join()


def test_if_another_server_listens_everything_goes_over_grpc(near: Table) -> None:
    found = LocalCalls(LocalAddress(replace(near.describe(), owner_id=b"x" * 16)))
    assert found.open_stream("Learn") is None
    assert found.call("Sample", b"", 5.0) is None


# The end of the server.


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_calls_ride_through_a_restart_and_find_the_socket_again(
    durable: ServerProcess, connect: Connect, end: str
) -> None:
    table = connect(durable).create_table("t", columns=COLUMNS, capacity=1000)
    table.insert(rows(range(50)))
    for _ in range(2):
        table.sample(1, beta=0.4)
        table.update_priorities([0], [1.0])
        getattr(durable, end)()
        durable.restart()
        assert_whole(table.sample(5, beta=0.4).columns)
        assert table.update_priorities([0], [1.0]).updated == 1
        found = table._data_path.calls
        assert found is not None
        assert found.open_stream("Sample") is not None
        copied = table.stats().sampled_same_host
        table.sample(5, beta=0.4)
        assert table.stats().sampled_same_host == copied + 5, "the files are those of the new server, too"


def test_a_call_that_waits_for_rows_rides_through_a_restart(durable: ServerProcess, connect: Connect) -> None:
    table = connect(durable).create_table("t", columns=COLUMNS, capacity=1000)
    batches: list[object] = []
    waiting = threading.Thread(target=lambda: batches.append(table.sample(3, beta=0.4, timeout_s=60.0)))
    waiting.start()
    wait_until(lambda: table.stats().waiting == 1, "it waits")
    durable.terminate()
    durable.restart()
    wait_until(lambda: table.stats().waiting == 1, "it waits again")
    table.insert(rows([1]))
    waiting.join()
    assert len(batches) == 1


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_sampler_is_on_the_socket_again_after_a_restart(durable: ServerProcess, connect: Connect, end: str) -> None:
    table = connect(durable).create_table("t", columns=COLUMNS, capacity=1000)
    table.insert(rows(range(50)))
    with table.sampler(4, beta=0.4) as sampler:
        next(sampler)
        for _ in range(3):
            getattr(durable, end)()
            durable.restart()
            for _ in range(6):
                assert_whole(next(sampler).columns)
            assert isinstance(sampler._stream._stream, DirectFrames)


@pytest.mark.timed
def test_a_call_of_a_server_that_is_gone_fails_as_over_grpc(start_server: StartServer, connect: Connect) -> None:
    server = start_server()
    table = connect(server, timeout_s=0.5).create_table("t", columns=COLUMNS, capacity=1000)
    table.insert(rows([1]))
    table.sample(1, beta=0.4)
    server.kill()
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(ServerUnavailableError):
            table.sample(1, beta=0.4)
        assert time.monotonic() - began < 2


@pytest.mark.timed
def test_a_flush_of_a_large_update_gives_up_in_time(start_server: StartServer, connect: Connect) -> None:
    server = start_server()
    table = connect(server).create_table("t", columns=COLUMNS, capacity=100)
    table.insert(rows([0]))
    with table.sampler(4, beta=0.4) as sampler:
        next(sampler)
        server.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        sampler.update_priorities(np.zeros(500_000, np.int64), np.full(500_000, 5.0))
        with pytest.raises(DeadlineExceededError):
            sampler.flush(timeout_s=0.2)
        assert time.monotonic() - began < 3
        server.process.send_signal(signal.SIGCONT)
        sampler.flush(timeout_s=30)
        assert table.read([0]).priorities.tolist() == [5.0]


def test_errors_of_the_socket_never_reach_the_caller(near: Table) -> None:
    """Calls succeed whatever the state of the connections in the pool."""
    for spoil in (FrameStream.cancel, lambda stream: stream._socket.shutdown(socket.SHUT_WR)):
        near.sample(1, beta=0.4)
        for kept in near._data_path.calls._idle["Sample"]:  # type: ignore[union-attr]
            spoil(kept.stream)
        try:
            assert_whole(near.sample(5, beta=0.4).columns)
        except ReplayError as error:
            raise AssertionError("it was not asked again over gRPC") from error


# A server that stops answering.


@pytest.fixture
def were_alive(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What streams found when they checked a silent server, which they do after a short time."""
    found: list[bool] = []
    is_alive = LocalCalls._is_alive

    def check(calls: LocalCalls, method: FrameMethod) -> bool:
        found.append(is_alive(calls, method))
        return found[-1]

    monkeypatch.setattr(LocalCalls, "_is_alive", check)
    monkeypatch.setattr(frame_stream, "SILENCE_S", 0.1)
    return found


def test_a_server_that_stops_answering_ends_a_stream(
    start_server: StartServer, connect: Connect, were_alive: list[bool]
) -> None:
    server = start_server()
    table = connect(server).create_table("t", columns=COLUMNS, capacity=10)
    stream = local_calls(connect(server), table).open_stream("Learn", 10.0)
    assert stream is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        stream.send(b"")
        with pytest.raises(ServerUnavailableError, match="no longer answers") as ended:
            stream.receive(30)
        assert ended.value.silent_s == 0.1
    finally:
        server.process.send_signal(signal.SIGCONT)
        stream.close()
    assert were_alive == [False]


def test_silence_that_was_longer_than_the_time_limit_needs_no_other_attempt() -> None:
    pending = PendingRequests[Request](reconnect_timeout_s=3.0, keep_refused=False)
    silent = ServerUnavailableError("the server no longer answers")
    assert pending.failed(silent, now=100.0) < 1
    silent.silent_s = 10.0
    with pytest.raises(ServerUnavailableError):
        PendingRequests[Request](reconnect_timeout_s=3.0, keep_refused=False).failed(silent, now=100.0)


def test_a_sampler_goes_on_when_a_stopped_server_continues(
    start_server: StartServer, connect: Connect, were_alive: list[bool]
) -> None:
    server = start_server()
    table = connect(server).create_table("t", columns=COLUMNS, capacity=10)
    table.insert(rows([7]))
    with table.sampler(4, beta=0.4, prefetch=1) as sampler, ThreadPoolExecutor(1) as pool:
        next(sampler)
        server.process.send_signal(signal.SIGSTOP)
        batch = pool.submit(next, sampler)
        wait_until(lambda: False in were_alive, "the stream has ended")
        server.process.send_signal(signal.SIGCONT)
        assert set(batch.result(60)["number"].tolist()) == {7}


def test_a_server_that_hangs_while_a_stream_is_opened_does_not_block_append(
    start_server: StartServer, connect: Connect
) -> None:
    server = start_server()
    table = connect(server).create_table("hung", columns=COLUMNS, capacity=1000)
    writer = table.writer()
    stream = writer._delivery._stream
    server.process.send_signal(signal.SIGSTOP)
    writer.append(**row(0))
    with pytest.raises(DeadlineExceededError):
        writer.flush(timeout_s=0)
    wait_until(lambda: stream._token is not None, "the background thread says hello")
    assert writer.in_flight == 1
    writer.append(**row(1))
    with pytest.raises(DeadlineExceededError):
        writer.flush(timeout_s=0)
    assert not stream.is_open, "all this was possible before the hello had ended"
    server.process.send_signal(signal.SIGCONT)
    writer.close()
    assert len(table) == 2


def test_a_request_may_wait_as_long_as_the_server_answers_others(near: Table, were_alive: list[bool]) -> None:
    near.reset()
    with ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(near.sample, 4, beta=0.4, timeout_s=60)
        wait_until(lambda: len(were_alive) >= 3, "the server was asked three times")
        near.insert(rows([7]))
        assert set(drawn.result(60)["number"].tolist()) == {7}
    assert all(were_alive)
