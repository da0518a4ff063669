"""The stream of events and the files of the live page: who may read them, and what hostile readers cost."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest
from replay_server.auth import Authenticator
from replay_server.catalog import Catalog
from replay_server.flow.background import Background
from replay_server.http import feed, live_page, serving
from replay_server.http.feed import Feed
from replay_server.http.live_page import LivePage
from replay_server.http.routes import Routes
from replay_server.http.serving import CHALLENGES, HttpServer, Readers
from replay_server.http.view import View
from replay_server.rpc.over_grpc.connections import Connections
from replay_server.storage.root import Root

from tests.support.access import ALL, EVERYWHERE, OTHER, READ, WRITE, WRONG, Authority, tls_flags, write_usual_tokens
from tests.support.caller import Caller
from tests.support.events import basic, events
from tests.support.http_port import FLAGS, get, http_port
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
OPEN = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"
TWICE_LONGEST_S = 0.6


@asynccontextmanager
async def served(folder: Path, longest_s: float = live_page.LONGEST_S) -> AsyncIterator[tuple[Feed, int]]:
    """A server in this process that serves nothing but the page; streams last up to ``longest_s`` seconds."""
    root = Root.in_memory(folder)
    background = Background()
    view = View(Catalog(root), {}, background, Connections(200, 16))
    made, readers = Feed(view, None), Readers(Authenticator())
    server = HttpServer(Routes(view, readers, LivePage(made, readers, longest_s)).app(), "127.0.0.1", 0, None)
    server.start(background)
    background.repeat("live page", made.go_on)
    try:
        yield made, server.port
    finally:
        await background.stop()
        await server.stop()
        root.close()


async def open_page(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for the events."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(OPEN)
    return reader, writer


async def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until ``holds()`` is true."""
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)
    assert holds(), what


def test_a_password_is_a_token_and_shows_what_the_token_may_read(start_server: StartServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    tokens = ("--tokens", str(write_usual_tokens(tmp_path / "tokens.toml")))
    checkpoints = ("--checkpoint-dir", str(tmp_path / "checkpoints"))
    server = start_server(*FLAGS, *tls_flags(authority.certify("server")), *tokens, *checkpoints)
    trusting = ssl.create_default_context(cafile=str(authority.ca))
    tls = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    for token, name in ((ALL, "mine-table"), (OTHER, "other-table")):
        credentials = grpc.composite_channel_credentials(tls, grpc.access_token_call_credentials(token))
        with Caller(f"localhost:{server.port}", credentials=credentials) as caller:
            caller.create(name)

    for path in ("/", "/events", "/history?table=mine-table", f"/?token={READ}", f"/events?token={READ}"):
        for headers in ({}, basic(WRONG), {"authorization": "Basic %"}, basic("")):
            refused = get(server, path, context=trusting, headers=headers)
            assert (refused.status, refused.headers.get_all("www-authenticate")) == (401, list(CHALLENGES))
    for path in ("/", "/events", "/history?table=mine-table"):
        for token in (WRITE, EVERYWHERE):
            assert get(server, path, context=trusting, headers=basic(token)).status == 403
    assert get(server, "/", context=trusting, headers=basic(READ)).status == 200
    assert get(server, "/page/page.js", context=trusting).status == 200
    assert get(server, "/history?table=other-table", context=trusting, headers=basic(READ)).status == 403
    assert get(server, "/history?table=mine-table", context=trusting, headers=basic(READ)).status == 200
    for headers, expected in (
        (basic(READ), ["mine-table"]),
        (basic(OTHER, user=""), ["other-table"]),
        ({"authorization": f"Bearer {ALL}"}, ["mine-table"]),
    ):
        with events(server, headers, trusting) as stream:
            figures = stream.next()
        assert [table["name"] for table in figures["tables"]] == expected
        assert figures["checkpoints"] is None
        assert not any(token in json.dumps(figures) for token in (READ, OTHER, ALL))


def test_a_stream_ends_when_its_token_is_removed(start_server: StartServer, tmp_path: Path) -> None:
    tokens = write_usual_tokens(tmp_path / "tokens.toml")
    server = start_server(*FLAGS, "--tokens", str(tokens))
    with events(server, basic(READ)) as stream:
        assert stream.next()["tables"] == []
        text = tokens.read_text()
        tokens.write_text(text.replace(READ, WRONG))
        for _ in stream:
            pass
    assert get(server, "/", headers=basic(READ)).status == 401
    assert "Traceback" not in server.log()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8080", 200),
        ("replay.localhost:80", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:80", 200),
        ("10.0.0.1", 200),
        ("evil.example", 421),
        ("evil.example:8080", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("[", 421),
        ("", 421),
    ],
)
def test_a_name_that_leads_to_this_host_gets_nothing(host: str, status: int, server_with_page: ServerProcess) -> None:
    for path in ("/", "/metrics"):
        assert get(server_with_page, path, headers={"host": host}).status == status
    assert get(server_with_page, "/readyz", headers={"host": host or "x"}).status == 200


@pytest.fixture(scope="module")
def server_with_page(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A server with an HTTP port, shared by this module."""
    folder = tmp_path_factory.mktemp("page")
    process = ServerProcess(folder / "log", "--memory-dir", str(folder), *FLAGS, forked=True)
    yield process
    process.kill()


def test_the_page_needs_nothing_from_elsewhere(server_with_page: ServerProcess) -> None:
    page = get(server_with_page, "/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    assert "unsafe" not in policy
    assert "://" not in page.text
    linked = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert linked
    imported = re.findall(r'from "\./([^"]+)"', get(server_with_page, "/page/page.js").text)
    for path in (*linked, *(f"page/{name}" for name in imported)):
        reply = get(server_with_page, f"/{path}")
        assert (reply.status, reply.headers["x-content-type-options"]) == (200, "nosniff")
    for path in ("/page/", "/page/nothing.js", "/page/../feed.py", "/page/%2e%2e/feed.py", "/page/uplot/LICENSE"):
        assert get(server_with_page, path).status == 404


def test_there_are_at_most_so_many_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay_server.http.live_page.MOST_PAGES", 2)
    monkeypatch.setattr(feed, "PERIOD_S", 0.02)

    async def look() -> bytes:
        async with served(tmp_path) as (made, port):
            (_, first), (_, second) = await open_page(port), await open_page(port)
            await until(lambda: made.pages == 2, "both pages are open")
            reader, third = await open_page(port)
            refused = await reader.read()
            first.close()
            await until(lambda: made.pages == 1, "the closed page is gone")
            for writer in (second, third):
                writer.close()
            return refused

    assert b" 503 " in asyncio.run(look()).splitlines()[0]


def test_a_stream_outlives_the_time_limit_and_a_flood_of_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LONGEST_S", TWICE_LONGEST_S / 2)
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 4)
    monkeypatch.setattr(feed, "PERIOD_S", 0.02)

    async def look() -> None:
        async with served(tmp_path) as (made, port):
            reader, writer = await open_page(port)
            await until(lambda: made.pages == 1, "the page is open")
            others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            deadline = time.monotonic() + TWICE_LONGEST_S
            while time.monotonic() < deadline:
                assert await reader.readline() != b""
            assert made.pages == 1
            for _, other in (*others, (None, writer)):
                other.close()

    asyncio.run(look())


def test_a_page_that_does_not_read_is_disconnected_and_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "SLOW_S", 1.0)
    monkeypatch.setattr(feed, "PERIOD_S", 0.01)
    # Frames so large that buffers are soon full.
    monkeypatch.setattr(Feed, "_server", lambda _: {"filler": "x" * 500_000})

    async def look() -> None:
        async with served(tmp_path) as (made, port):
            slow = socket.create_connection(("127.0.0.1", port))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(OPEN)
            await until(lambda: made.pages == 1, "the slow page is open")
            reader, writer = await open_page(port)
            await until(lambda: made.pages == 2, "the other page is open")
            async with asyncio.timeout(30):
                while made.pages == 2:
                    assert await reader.readline() != b""
                for _ in range(20):
                    assert await reader.readline() != b""
            assert made.pages == 1
            writer.close()
            slow.close()

    asyncio.run(look())


def test_a_page_that_does_not_read_is_disconnected_when_its_stream_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "SLOW_S", 0.2)
    monkeypatch.setattr(feed, "PERIOD_S", 0.1)
    # The first frame fills all buffers, and is the last one.
    monkeypatch.setattr(Feed, "_server", lambda _: {"filler": "x" * 50_000_000})

    async def look() -> None:
        async with served(tmp_path, longest_s=0.05) as (made, port):
            with socket.create_connection(("127.0.0.1", port)) as slow:
                slow.sendall(OPEN)
                await until(lambda: made.pages == 1, "the page is open")
                await until(lambda: made.pages == 0, "the page is disconnected")

    asyncio.run(look())


def test_a_stopping_server_ends_streams(start_server: StartServer) -> None:
    server = start_server(*FLAGS)
    with events(server) as stream, socket.create_connection(("127.0.0.1", http_port(server))) as unread:
        unread.sendall(OPEN)
        stream.next()
        server.terminate()
        with suppress(ConnectionError):
            for _ in stream:
                pass
    assert server.process.poll() == 0
    assert "ERROR" not in server.log()
