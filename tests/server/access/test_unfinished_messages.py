"""Messages that are begun and not finished take little memory, which is given back, and delay nobody."""

from __future__ import annotations

import asyncio
import math
import queue
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2
from replay_server.errors import RequestError
from replay_server.rpc.over_grpc import unfinished as looks
from replay_server.rpc.over_grpc.sockets import find_connections
from replay_server.rpc.over_grpc.unfinished import Connection, Unfinished

from tests.support.access import ALL, MINE, WRITE, write_usual_tokens
from tests.support.caller import Caller, table_config
from tests.support.deadlines import wait_until
from tests.support.frame_stub import HEAD, MESSAGE, STATUS, greeted
from tests.support.http2 import GRPC_HEAD, Http2
from tests.support.server_process import ServerProcess
from tests.support.wire import SERVICE
from tools.attacks.attack import bearer
from tools.attacks.memory import BYTES_PER_MB, MemoryWatch

StartServer = Callable[..., ServerProcess]
CONNECTIONS, STREAMS = 2, 40
MESSAGE_BYTES = 8 << 20
ROW_BYTES = 4 << 20
ALLOWED_MB = CONNECTIONS * STREAMS * MESSAGE_BYTES / BYTES_PER_MB / 2
GIVEN_BACK_MB = 50.0
GIVEN_BACK_S = 10.0
SILENT_S = 10.0
LARGEST, MORE_PARTS = 1 << 20, 30


def withhold_last_bytes(server: ServerProcess, method: str, stack: ExitStack) -> int:
    """Begin large messages on one connection; return how many calls the server has ended."""
    link = stack.enter_context(Http2(socket.create_connection(("127.0.0.1", server.port))))
    calls = [link.begin(f"/{SERVICE.full_name}/{method}", bearer(WRITE)) for _ in range(STREAMS)]
    part = GRPC_HEAD.pack(0, MESSAGE_BYTES) + bytes(MESSAGE_BYTES - 1)
    try:
        return sum(not link.send(number, part) for number in calls)
    except OSError:  # the server has closed the connection
        return STREAMS


class HonestWriter:
    """A stream that inserts large rows, one after another."""

    def __init__(self, caller: Caller, table: str) -> None:
        self._ask: queue.SimpleQueue[replay_pb2.WriteRequest | None] = queue.SimpleQueue()
        self._table = table
        self._sequence = 0
        self._answers = caller.stub.Write(iter(self._ask.get, None), metadata=bearer(ALL))

    def insert(self) -> int:
        """Insert a row; return its key."""
        self._sequence += 1
        insertion = replay_pb2.Insertion(row_count=1, sequence=self._sequence)
        self._ask.put(
            replay_pb2.WriteRequest(table=self._table, writer_id=bytes(16), insertion=insertion, rows=bytes(ROW_BYTES))
        )
        return next(self._answers).keys[0].first

    def close(self) -> None:
        """End the stream."""
        self._ask.put(None)


@pytest.mark.parametrize("method", ["Write", "Insert"])
def test_withheld_bytes_take_little_memory_and_nobody_else_notices(
    start_server: StartServer, tmp_path: Path, method: str
) -> None:
    server = start_server("--tokens", str(write_usual_tokens(tmp_path / "tokens.toml")))
    config = table_config(f"{MINE}table", capacity=10, schema=Schema({"x": Column("uint8", (ROW_BYTES,))}))
    with Caller(server.address) as caller:
        caller.stub.CreateTable(replay_pb2.CreateTableRequest(config=config), metadata=bearer(ALL))
        writer = HonestWriter(caller, config.name)
        assert writer.insert() == 0
        with MemoryWatch(server.pid) as memory:
            with ExitStack() as stack, ThreadPoolExecutor(CONNECTIONS) as pool:
                ended = sum(pool.map(lambda _: withhold_last_bytes(server, method, stack), range(CONNECTIONS)))
                assert writer.insert() == 1, "an honest stream goes on"
            assert ended > CONNECTIONS * STREAMS // 2
            assert memory.rise_mb < ALLOWED_MB
            wait_until(lambda: memory.now_mb < GIVEN_BACK_MB, "memory is given back", GIVEN_BACK_S)
        writer.close()


def test_who_falls_silent_within_a_message_is_refused_after_a_while(start_server: StartServer) -> None:
    server = start_server()
    with Caller(server.address) as caller, Http2(socket.create_connection(("127.0.0.1", server.port))) as link:
        local = greeted(caller.create().describe(), "Write")
        began = time.monotonic()
        local.socket.sendall(HEAD.pack(1 << 20, MESSAGE) + bytes((1 << 20) - 1))
        call = link.begin(f"/{SERVICE.full_name}/Write")
        assert link.send(call, GRPC_HEAD.pack(0, 1 << 20) + bytes((1 << 20) - 1))
        kind, content = local.receive()
        assert kind == STATUS
        assert b"MESSAGE_UNFINISHED" in content
        link.wait_for_end(call, 2 * SILENT_S)
        assert SILENT_S - 1 < time.monotonic() - began < 2 * SILENT_S
        local.close()


@pytest.mark.parametrize("completes", [False, True])
def test_a_caller_that_completes_nothing_holds_no_more_than_its_share(
    monkeypatch: pytest.MonkeyPatch, *, completes: bool
) -> None:
    monkeypatch.setattr(looks, "_ALL_S", 0.0)
    monkeypatch.setattr(looks, "_STALLED_S", math.inf)
    with ExitStack() as stack:
        pairs = [stack.enter_context(connected()) for _ in range(2)]

        async def receive() -> list[RequestError]:
            unfinished, reader = Unfinished(LARGEST), Reader()
            connections = [unfinished.connection(f"ipv4:127.0.0.1:{port(client)}", "caller") for client, _ in pairs]
            for connection in connections:
                connection.begin(reader)
                stack.callback(connection.finish, reader)
            for part in (bytes(LARGEST - 10_000), *[bytes(10)] * MORE_PARTS):
                for client, ours in pairs:
                    client.sendall(part)
                    ours.recv(len(part), socket.MSG_WAITALL)
                if completes:
                    connections[0].whole(0)
                await unfinished.look()
            return reader.refusals

        refusals = asyncio.run(receive())
    assert bool(refusals) is not completes


class Reader:
    """Remembers how it was ended."""

    def __init__(self) -> None:
        self.refusals: list[RequestError] = []

    def end(self, refusal: RequestError) -> None:
        self.refusals.append(refusal)


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as ours,
    ):
        yield client, ours


def port(client: socket.socket) -> int:
    number: int = client.getsockname()[1]
    return number


def test_bytes_of_whole_messages_are_not_held_against_a_connection() -> None:
    with connected() as (client, ours):
        connection = Connection("caller")
        connection.socket = find_connections()[f"ipv4:127.0.0.1:{port(client)}"]
        client.sendall(bytes(100_000))
        assert connection.look(1.0, 1.0)
        assert connection.unfinished == 0.0, "nothing has been read yet"
        ours.recv(100_000, socket.MSG_WAITALL)
        connection.look(2.0, 0.0)
        assert connection.unfinished == 100_000
        connection.whole(100_000)
        connection.look(3.0, 0.0)
        assert connection.unfinished == 0.0
        assert connection.completed == 3.0
    assert not connection.look(4.0, 0.0), "it is closed"


def test_connections_over_ipv6_are_found() -> None:
    with (
        socket.create_server(("::1", 0), family=socket.AF_INET6) as listener,
        socket.create_connection(listener.getsockname()[:2]) as client,
        listener.accept()[0],
    ):
        assert f"ipv6:%5B::1%5D:{client.getsockname()[1]}" in find_connections()
