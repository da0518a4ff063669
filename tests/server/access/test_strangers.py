"""Limits on what a server spends on callers without a token, and on callers who violate the wire protocol."""

from __future__ import annotations

import gzip
import os
import queue
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from hyperframe.frame import RstStreamFrame
from replay_client import Column, ReplayClient
from replay_client.security import token_metadata
from replay_proto.access.serving import BODY_S, DEFAULT_MAX_CONNECTIONS, HANDSHAKE_S
from replay_server.rpc.over_grpc.connections import SPARE

from tests.support.access import ALL, MINE, Authority, tls_flags, write_usual_tokens
from tests.support.deadlines import wait_until
from tests.support.http2 import GRPC_HEAD, Http2, RawFrames, header_block, opening
from tests.support.refusals import code_of, refusal_in
from tests.support.server_process import ServerProcess
from tests.support.wire import SERVICE

StartServer = Callable[..., ServerProcess]
PATIENCE_S = 30.0
MOST_BYTES = 50 << 20
"""Memory that strangers may cost."""
LARGE = bytes(100 << 20)
UNKNOWN_FRAME = (16_384).to_bytes(3, "big") + b"\xfa" + bytes(5 + 16_384)
"""A frame of 16 KiB, of a type that HTTP/2 does not define and receivers ignore."""
FLOODS, PAUSES = 16, 4
"""Connections of a flood, and how often the server pauses meanwhile."""
FLOOD_BYTES = 32 << 20
"""Bytes that each connection sends between two pauses, several times what the kernel holds of it."""
INSERT, CREATE = f"/{SERVICE.full_name}/Insert", f"/{SERVICE.full_name}/CreateTable"
HEALTH = "/grpc.health.v1.Health/Check"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the usual tokens."""
    folder: Path = tmp_path_factory.mktemp("strangers")
    tokens = write_usual_tokens(folder / "tokens.toml")
    made = ServerProcess(folder / "log", "--tokens", str(tokens), "--memory-dir", str(folder))
    with ReplayClient(made.address, token=ALL) as client:
        client.create_table(f"{MINE}table", columns={"x": Column("int64")}, capacity=100).insert({"x": [1]})
    yield made
    made.terminate()


@pytest.fixture
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(server.address, options=options) as opened:
        yield opened


def connect(server: ServerProcess) -> socket.socket:
    """A connection on which nothing has been sent."""
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)


@pytest.fixture(autouse=True)
def forget_peak(server: ServerProcess) -> None:
    """Make the peak memory that of this test, so that no earlier test hides a growth."""
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")


def peak_bytes(server: ServerProcess) -> int:
    """The server's peak memory since the test began."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def test_long_messages_of_strangers_are_not_received(server: ServerProcess, channel: grpc.Channel) -> None:
    before = peak_bytes(server)
    send: Callable[..., bytes] = channel.unary_unary(INSERT)

    def refused(_: int) -> grpc.StatusCode:
        with pytest.raises(grpc.RpcError) as error:
            send(LARGE, timeout=PATIENCE_S)
        return code_of(error.value)

    with ThreadPoolExecutor(4) as threads:
        assert {*threads.map(refused, range(4))} == {grpc.StatusCode.UNAUTHENTICATED}
    assert peak_bytes(server) - before < MOST_BYTES


def test_a_long_question_about_health_is_answered_unread(server: ServerProcess, channel: grpc.Channel) -> None:
    before = peak_bytes(server)
    ask: Callable[..., bytes] = channel.unary_unary(HEALTH)
    for _ in range(3):
        answer = health_pb2.HealthCheckResponse.FromString(ask(LARGE, timeout=PATIENCE_S))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert peak_bytes(server) - before < MOST_BYTES


def test_many_unread_bodies_do_not_stop_their_connection(channel: grpc.Channel) -> None:
    ask: Callable[..., bytes] = channel.unary_unary(HEALTH)
    for _ in range(300):
        assert ask(bytes(50_000), timeout=PATIENCE_S)


@pytest.mark.parametrize("token", [None, ALL], ids=["stranger", "with a token"])
def test_compressed_messages_are_not_unpacked(server: ServerProcess, token: str | None) -> None:
    before, log = peak_bytes(server), server.log()
    bomb = gzip.compress(bytes(60 << 20), 9)
    assert len(bomb) < 65_000, "it has to fit into the window of a connection that is new"
    metadata = [("grpc-encoding", "gzip"), *token_metadata(token)]
    for _ in range(3):
        with Http2(connect(server)) as link:
            call = link.begin(INSERT, metadata)
            link.send(call, GRPC_HEAD.pack(1, len(bomb)) + bomb, is_last=True)
            link.wait_for_end(call)
    assert peak_bytes(server) - before < MOST_BYTES
    assert server.log() == log


def test_a_flood_during_pauses_of_the_server_is_not_read_at_once(server: ServerProcess) -> None:
    before, is_over, sent = peak_bytes(server), threading.Event(), [0] * FLOODS

    def flood(number: int, link: RawFrames) -> None:
        while not is_over.is_set():
            link.send_bytes(UNKNOWN_FRAME * 64)
            sent[number] += 64 * len(UNKNOWN_FRAME)

    with ExitStack() as opened, ThreadPoolExecutor(FLOODS) as threads:
        sockets = [opened.enter_context(connect(server)) for _ in range(FLOODS)]
        floods = [threads.submit(flood, *each) for each in enumerate(map(RawFrames, sockets))]
        try:
            for _ in range(PAUSES):
                os.kill(server.pid, signal.SIGSTOP)
                wait_until(lambda: not select.select([], sockets, [], 0)[1], "the kernel's buffers are full")
                goal = min(sent) + FLOOD_BYTES
                os.kill(server.pid, signal.SIGCONT)
                wait_until(partial(has_sent, sent, goal), "the server has read what came during the pause")
        finally:
            os.kill(server.pid, signal.SIGCONT)
            is_over.set()
    for ended in floods:
        ended.result()
    assert peak_bytes(server) - before < MOST_BYTES


def has_sent(sent: list[int], goal: int) -> bool:
    """Whether each connection has sent so many bytes."""
    return min(sent) >= goal


def test_calls_that_arrive_together_take_little_memory(server: ServerProcess) -> None:
    before = peak_bytes(server)
    block = header_block(INSERT, [(f"x-{number}", "a" * 700) for number in range(5)])
    with ExitStack() as links, ThreadPoolExecutor(DEFAULT_MAX_CONNECTIONS) as threads:
        opened = [links.enter_context(RawFrames(connect(server))) for _ in range(DEFAULT_MAX_CONNECTIONS - 1)]
        calls = [opening(number, block) for number in range(1, 200, 2)]
        list(threads.map(lambda link: link.send(calls), opened))
        with ReplayClient(server.address, token=ALL, same_host=False) as later:
            assert len(later[f"{MINE}table"]) == 1
    assert peak_bytes(server) - before < MOST_BYTES


def test_a_body_held_back_is_refused_at_once_without_a_token_and_soon_with_one(channel: grpc.Channel) -> None:
    call: Callable[..., bytes] = channel.stream_unary(CREATE)
    began = time.monotonic()
    with pytest.raises(grpc.RpcError) as error:
        call(iter(queue.SimpleQueue[bytes]().get, b""), timeout=PATIENCE_S)
    assert code_of(error.value) is grpc.StatusCode.UNAUTHENTICATED
    assert time.monotonic() - began < BODY_S
    with pytest.raises(grpc.RpcError) as error:
        call(iter(queue.SimpleQueue[bytes]().get, b""), metadata=token_metadata(ALL), timeout=PATIENCE_S)
    assert refusal_in(error.value).metadata["expected"] == f"the whole message within {BODY_S:g} s"


def test_a_connection_that_says_nothing_takes_nothing_of_the_server(server: ServerProcess) -> None:
    process = psutil.Process(server.pid)
    before = process.num_fds()
    with ExitStack() as links:
        for _ in range(20):
            links.enter_context(connect(server))
        with grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)]) as later:
            ask: Callable[..., bytes] = later.unary_unary(HEALTH)
            assert ask(b"", timeout=PATIENCE_S), "those before it would have been accepted by now"
        assert process.num_fds() < before + 10


def test_a_connection_that_says_too_little_is_closed(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=HANDSHAKE_S + PATIENCE_S) as link:
        link.sendall(b"P")
        while link.recv(4096):
            pass


def test_connections_far_over_the_limit_are_closed(start_server: StartServer) -> None:
    server = start_server("--max-connections", "3")
    with ExitStack() as links:
        for link in [links.enter_context(connect(server)) for _ in range(3 + SPARE)]:
            link.sendall(b"PRI * HTTP/2.0")
            assert link.recv(1), "the server's settings"
        one_more = links.enter_context(connect(server))
        one_more.sendall(b"PRI * HTTP/2.0")
        assert ends(one_more)


def ends(link: socket.socket) -> bool:
    """Whether the server closes a connection without sending anything."""
    try:
        return link.recv(1) == b""
    except ConnectionResetError:
        return True


def test_streams_are_refused_before_a_message(channel: grpc.Channel) -> None:
    for method in ("Write", "Learn"):
        stream: Callable[..., Iterator[bytes]] = channel.stream_stream(f"/{SERVICE.full_name}/{method}")
        with pytest.raises(grpc.RpcError) as error:
            next(stream(iter(queue.SimpleQueue[bytes]().get, b""), timeout=PATIENCE_S))
        assert code_of(error.value) is grpc.StatusCode.UNAUTHENTICATED


def test_reflection_takes_a_token(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.address) as opened:
        with pytest.raises(grpc.RpcError) as error:
            list(ProtoReflectionDescriptorDatabase(opened).get_services())
        assert code_of(error.value) is grpc.StatusCode.UNAUTHENTICATED
        path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        stream: Callable[..., Iterator[bytes]] = opened.stream_stream(path)
        assert next(stream(iter([b""]), metadata=token_metadata(ALL), timeout=PATIENCE_S))


def test_calls_that_are_given_up_at_once_cost_a_bystander_no_error(server: ServerProcess) -> None:
    stop, block = time.monotonic() + 3.0, header_block(INSERT)

    def reset() -> int:
        first = 1
        with RawFrames(connect(server)) as link:
            while time.monotonic() < stop:
                calls = range(first, first + 1000, 2)
                link.send([opening(call, block) for call in calls])
                link.send([RstStreamFrame(call, error_code=8) for call in calls])
                first += 1000
        return first // 2

    with ThreadPoolExecutor(2) as threads, ReplayClient(server.address, token=ALL, same_host=False) as client:
        table = client.table(f"{MINE}table")
        attacks = [threads.submit(reset) for _ in range(2)]
        while time.monotonic() < stop:
            table.sample(4, beta=0.4)
        assert all(attack.result() >= 500 for attack in attacks)


def test_failed_handshakes_are_not_logged(start_server: StartServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server = start_server(*tls_flags(authority.certify("server")))
    before = server.log()
    for _ in range(50):
        with connect(server) as link:
            link.sendall(b"\x16\x03\x01\x00\x05nonsense, and no handshake of TLS")
            assert link.recv(4096) or True
    with ReplayClient(server.address, tls=authority.tls()) as client:
        assert client.tables() == []
    assert server.log() == before


def test_connections_leave_descriptors_to_the_server(start_server: StartServer) -> None:
    server = start_server(within=["prlimit", "--nofile=200:200"])
    links = []
    with ReplayClient(server.address) as client:
        assert client.tables() == []
        try:
            for _ in range(220):
                links.append(connect(server))
                with suppress(ConnectionResetError):
                    links[-1].sendall(b"P")
            # A connection beyond the limit is closed immediately.
            assert ends(links[-1])
            assert (
                client.create_table("one", columns={"x": Column("int64")}, capacity=10).insert({"x": [1]}) is not None
            )
        finally:
            for link in links:
                link.close()
    with grpc.insecure_channel(server.address) as opened:
        answer = health_pb2_grpc.HealthStub(opened).Check(
            health_pb2.HealthCheckRequest(), timeout=PATIENCE_S, wait_for_ready=True
        )
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
