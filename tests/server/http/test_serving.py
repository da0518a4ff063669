"""The port itself: probes, limits, startup and shutdown."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import get_args

import psutil
import pytest
from replay_server.auth import Authenticator
from replay_server.catalog import Catalog
from replay_server.flow.background import Background
from replay_server.http import serving
from replay_server.http.feed import Feed
from replay_server.http.live_page import LivePage
from replay_server.http.routes import Routes
from replay_server.http.serving import MOST_CONNECTIONS, HttpServer, Readers
from replay_server.http.view import State, View
from replay_server.rpc.over_grpc.connections import Connections
from replay_server.storage.root import Root

from tests.support.deadlines import wait_until
from tests.support.http_port import FLAGS, get, http_port
from tests.support.server_process import ServerProcess, run_to_its_end

StartServer = Callable[..., ServerProcess]
PROBE = b"GET /readyz HTTP/1.1\r\nHost: here\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"
WAITS = """
import os
from pathlib import Path
import replay_server.process.main as program

load = program.warm_up

def wait_and_load(cancelled):
    Path(os.environ["GATE"]).read_text()
    load(cancelled)

program.warm_up = wait_and_load
"""
"""Runs when Python starts: the kernels are loaded only after a pipe has been opened and closed."""


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[View, int]]:
    """A server in this process that serves nothing but HTTP."""
    root = Root.in_memory(folder)
    background = Background()
    view = View(Catalog(root), {}, background, Connections(200, 16))
    readers = Readers(Authenticator())
    server = HttpServer(Routes(view, readers, LivePage(Feed(view, None), readers)).app(), "127.0.0.1", 0, None)
    server.start(background)
    try:
        yield view, server.port
    finally:
        await background.stop()
        await server.stop()
        root.close()


async def ask(port: int, request: bytes) -> bytes:
    """Send a request on a new connection, and return everything that the server sends until it closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        writer.write(request)
        return await reader.read()


async def readiness(port: int) -> bytes:
    """Status and text of the probe's reply."""
    reply = await ask(port, PROBE)
    return reply.split()[1] + b" " + reply.splitlines()[-1]


def test_the_probe_of_readiness_follows_the_server(tmp_path: Path) -> None:
    async def look() -> list[bytes]:
        async with served(tmp_path) as (view, port):
            seen = []
            for state in get_args(State):
                view.state = state
                seen.append(await readiness(port))
            return seen

    assert asyncio.run(look()) == [b"503 starting", b"200 ready", b"503 stopping"]


def test_a_server_is_ready_once_its_kernels_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WAITS)
    log, gate = tmp_path / "log", tmp_path / "gate"
    os.mkfifo(gate)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    start = partial(ServerProcess, log, *FLAGS, environment={"PYTHONPATH": path, "GATE": str(gate)})
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(start, "--memory-dir", str(tmp_path))
        with gate.open("w"):  # waits until the server reads it
            wait_until(lambda: "/metrics" in log.read_text(), "it has logged its port")
            port = int(log.read_text().split("/metrics")[0].rpartition(":")[2])
            loading = asyncio.run(readiness(port))
        server = starting.result()
    try:
        assert (loading, asyncio.run(readiness(port))) == (b"503 starting", b"200 ready")
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\nHost: here\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\nhi", b"405"),
        (b"GET /metrics HTTP/1.1\r\nHost: here\r\n" + b"x-long: " + b"x" * (1 << 20) + b"\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b""),
        (PROBE * 100, b"503"),
    ],
    ids=["unknown path", "wrong method", "long header", "not HTTP", "pipelined requests"],
)
def test_each_connection_gets_one_reply_and_is_closed(tmp_path: Path, request_bytes: bytes, status: bytes) -> None:
    async def look() -> bytes:
        async with served(tmp_path) as (_, port):
            try:
                return await ask(port, request_bytes)
            except ConnectionResetError:  # closed while the rest of the request was on its way
                return b"HTTP/1.1 " + status

    reply = asyncio.run(look())
    assert reply.count(b"HTTP/1.1 ") == 1
    assert reply.startswith(b"HTTP/1.1 " + status)


def test_a_connection_without_a_request_ends_after_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LONGEST_S", 0.1)

    async def look() -> bytes:
        async with served(tmp_path) as (_, port):
            assert await ask(port, PROBE[:-2]) == b""
            monkeypatch.setattr(serving, "LONGEST_S", 60.0)
            return await ask(port, PROBE)

    assert asyncio.run(look()).startswith(b"HTTP/1.1 503")


def test_a_thousand_connections_cost_little_and_keep_nobody_out(start_server: StartServer) -> None:
    server = start_server(*FLAGS)
    process, port = psutil.Process(server.pid), http_port(server)
    memory = server.resident_bytes

    def served() -> int:
        """Its connections to the port. Counts of all descriptors include files that other parts open for a moment."""
        return sum(each.laddr.port == port and bool(each.raddr) for each in process.net_connections("tcp"))

    held = [socket.socket() for _ in range(1000)]
    for connection in held:
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", port))
    # Half a request, a reply that nobody reads, or nothing.
    sent = itertools.cycle((PROBE[:-2], METRICS, b""))
    for connection, request in zip(held, sent, strict=False):
        with suppress(OSError):  # not connected yet
            connection.send(request)
    assert get(server, "/readyz").status == 200
    assert get(server, "/metrics").status == 200
    assert served() <= MOST_CONNECTIONS + 1, "one more is being refused"
    assert server.resident_bytes < memory + (50 << 20)
    for connection in held:
        connection.close()
    wait_until(lambda: served() == 0, "its connections are closed")
    assert "Traceback" not in server.log()


def test_a_server_that_stops_during_scrapes_logs_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def look() -> None:
        async with served(tmp_path) as (_, port):
            readers = [asyncio.create_task(ask(port, METRICS)) for _ in range(20)]
            await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*readers, return_exceptions=True)

    asyncio.run(look())
    assert caplog.records == []


def test_a_port_in_use_is_an_error_that_names_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run_to_its_end("--http-port", port, "--memory-dir", str(tmp_path))
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port} for HTTP" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_stopping_server_closes_its_port(start_server: StartServer) -> None:
    server = start_server(*FLAGS)
    port = http_port(server)
    with socket.create_connection(("127.0.0.1", port)) as held:
        held.send(PROBE[:-2])
        assert server.terminate() == 0
        assert held.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_without_the_port_its_libraries_are_not_loaded() -> None:
    libraries = {"starlette", "uvicorn", "prometheus_client"}
    program = f"import sys, replay_server.process.main; print(*{libraries} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
