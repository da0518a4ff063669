"""Serves an ASGI application on the event loop, to peers that may be hostile; identifies readers by their tokens.

Uvicorn parses HTTP. This module adds limits on the duration and number of connections, which Uvicorn lacks. A reply may
exempt its connection from these limits. The event loop accepts one connection at a time, so that a flood of connections
delays gRPC calls only a little.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import socket
import ssl
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import uvicorn
from replay_proto.access.serving import hold_back_silent
from replay_proto.channels import host_and_port
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from replay_server.auth import Authenticator, Caller
from replay_server.errors import FatalError
from replay_server.flow.background import Background

MOST_CONNECTIONS: Final = 64
"""Maximum connections. A further connection closes the oldest one, because honest readers' connections are short."""
LONGEST_S: Final = 10.0
"""Time limit for a connection, from its acceptance to the end of its only reply."""
_HEAD_BYTES: Final = 16 << 10
"""Maximum size of a request's head."""
_BACKLOG: Final = 64
"""Maximum connections that wait to be accepted."""
_END_S: Final = 2.0
"""Time limit for running requests when the server stops. Their connections are already closed."""
_RETRY_S: Final = 0.1
"""Pause after a connection could not be accepted, for example because no file descriptor is left."""
_CONNECTION: Final = "connection"
_HEADERS: Final = [(b"connection", b"close"), (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
"""Headers of all replies."""


class HttpServer:
    """Listens on a port."""

    def __init__(self, app: ASGIApp, host: str, port: int, context: ssl.SSLContext | None) -> None:
        """Bind the port; 0: any free one. Clients can connect, but their requests wait until `start`.

        Without a TLS ``context``, connections are not encrypted.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            # As for gRPC, host ``::`` includes all IPv4 addresses.
            dualstack = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
            self._listener = socket.create_server(
                (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=dualstack
            )
        except OSError as error:
            raise FatalError(f"cannot listen on {host_and_port(host, port)} for HTTP: {error.strerror}") from error
        self._listener.setblocking(False)
        hold_back_silent(self._listener)
        self._context = context
        self._config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="error",  # hostile peers could fill the log with warnings
            access_log=False,
            h11_max_incomplete_event_size=_HEAD_BYTES,
        )
        self._config.load()
        self._state = ServerState()
        self._state.default_headers = _HEADERS
        self._open: dict[asyncio.Task[None], None] = {}  # oldest first
        self._kept: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port."""
        found: int = self._listener.getsockname()[1]
        return found

    def start(self, background: Background) -> None:
        """Start serving; a loop in the background accepts connections."""
        background.repeat("accepting HTTP connections", self._accept)

    async def stop(self) -> None:
        """Close the port and all connections, and wait for running requests. The loop must have been stopped."""
        ending = [*self._open, *self._kept]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._listener.close()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=_END_S)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            peer, _ = await loop.sock_accept(self._listener)
        except OSError:
            await asyncio.sleep(_RETRY_S)
            return
        task = loop.create_task(self._serve(peer))
        self._open[task] = None
        task.add_done_callback(self._forget)
        if len(self._open) > MOST_CONNECTIONS:
            next(iter(self._open)).cancel()
        await asyncio.sleep(0)  # let other tasks run, even if more connections wait

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        self._kept.discard(task)

    async def _serve(self, peer: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        # A handshake that fails or takes too long is the peer's problem.
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(LONGEST_S) as limit:
                connection = Connection(self._config, self._state, partial(self._keep, task, limit))
                try:
                    await loop.connect_accepted_socket(lambda: connection, peer, ssl=self._context)
                    await connection.lost
                finally:
                    connection.abort()

    def _keep(self, task: asyncio.Task[None], limit: asyncio.Timeout) -> None:
        """Exempt a connection from the limits on time and number."""
        limit.reschedule(None)
        if task in self._open:
            del self._open[task]
            self._kept.add(task)


class Connection(H11Protocol):
    """One connection."""

    def __init__(self, config: uvicorn.Config, state: ServerState, keep: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        # A weak reference, so that memory is freed without the garbage collector.
        super().__init__(config, state, {_CONNECTION: weakref.ref(self)}, loop)
        self.keep_open = keep
        """Exempts this connection from the limits on time and number."""
        self.lost: asyncio.Future[None] = loop.create_future()
        """Done when the connection is closed."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        super().connection_lost(exc)
        if not self.lost.done():
            self.lost.set_result(None)

    def abort(self) -> None:
        """Close the connection now, if it is open."""
        if self.transport is not None:
            self.transport.abort()


def connection_of(scope: Scope) -> Connection:
    """The connection that carries a request."""
    connection: Connection | None = scope["state"][_CONNECTION]()
    assert connection is not None
    return connection


CHALLENGES: Final = ("Bearer", 'Basic realm="replay-server: any name, and a token as the password", charset="UTF-8"')
"""Challenges for a reader without a valid token. Each gets its own header: browsers understand only one per header."""
_BASIC: Final = "basic "


class Readers:
    """Identifies readers of the HTTP port by a token, which they send as a bearer token, or as a password.

    Browsers prompt for a user name and a password if the server requests them (RFC 7617). Tokens in URLs are not
    accepted, because URLs end up in histories and logs.
    """

    def __init__(self, authenticator: Authenticator, *, on_this_host: bool = False) -> None:
        """Accept the same tokens as gRPC.

        Args:
            authenticator: identifies callers.
            on_this_host: whether all readers are on this host and need no token. If so, the Host header must be
                ``localhost``, a name that ends in ``.localhost``, or an IP address. This prevents DNS rebinding, where
                a web page points its own host name at this server, and reads the replies.
        """
        self._authenticator = authenticator
        self._on_this_host = on_this_host

    def identify(self, request: Request) -> Caller:
        """Return the reader who sends a request.

        Raises:
            RequestError: UNAUTHENTICATED.
            HTTPException: 421 if the Host header must name this host, but does not.
        """
        host = request.headers.get("host", "")
        if self._on_this_host and not _names_this_host(host):
            raise HTTPException(421, f"expected localhost or an IP address as the host, got {host!r}")
        return self._authenticator.caller_of(_metadata(request))


def _metadata(request: Request) -> list[tuple[str, str]]:
    return [(name, _bearer(value)) for name, value in request.headers.items()]


def _names_this_host(authority: str) -> bool:
    try:
        host = urlsplit(f"//{authority}").hostname or ""
        return host == "localhost" or host.endswith(".localhost") or bool(ip_address(host))
    except ValueError:
        return False


def _bearer(header: str) -> str:
    """Convert a header's value from Basic to Bearer, with the password as the token; return other values unchanged."""
    if not header.lower().startswith(_BASIC):
        return header
    try:
        _, _, password = base64.b64decode(header[len(_BASIC) :].strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return header
    return f"Bearer {password}"
