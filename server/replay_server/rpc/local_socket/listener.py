"""A unix-domain socket, without HTTP/2, for clients on this host.

For a learner step of a few kilobytes, gRPC in Python takes several times as long as the table's own work. This socket
avoids that cost. `FrameHello` in the protocol documents the format.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError
from replay_proto.access.tokens import Right
from replay_proto.errors import FieldError
from replay_proto.frames import Content
from replay_proto.tracing import Metadata, is_tracing, span
from replay_proto.v1 import replay_pb2

from replay_server import errors
from replay_server.auth import Authenticator, Caller
from replay_server.catalog import Catalog
from replay_server.rpc.call import Call, OpenStreams
from replay_server.rpc.endpoint import AnyEndpoint
from replay_server.rpc.local_socket.connection import Admitted, LocalConnection
from replay_server.rpc.local_socket.long_frames import budget_of_long_frames

log = logging.getLogger(__name__)

SOCKET_NAME: Final = ".socket"
"""File name of the socket in the tables' folder; tables cannot have this name."""
METHODS: Final = ("Learn", "Read", "Sample", "UpdatePriorities", "UpdateRows", "Write")
"""Supported methods: those of learners' steps, of writers, and of readers."""
MOST_CONTEXT: Final = 8192
"""Maximum characters of a trace context. gRPC limits the metadata of a call to about the same size."""
MOST_SILENT: Final = 64
"""Maximum connections that have not sent their hello. Clients send it immediately, so there are never many."""
_PRIVATE: Final = 0o600
_SHARED: Final = 0o660
"""Modes of the socket: in a folder that is private, and in a folder that a group may read."""
_LOOK_S: Final = 0.01
"""Polling interval while waiting for connections to close."""


class LocalSocket:
    """Listens on a unix-domain socket in the server's own directory."""

    def __init__(
        self,
        catalog: Catalog,
        endpoints: Mapping[str, AnyEndpoint],
        authenticator: Authenticator,
        streams: OpenStreams,
    ) -> None:
        """Create the socket without listening yet; ``endpoints`` maps method names to endpoints."""
        self.streams = streams
        self.long_frames = budget_of_long_frames(catalog.bounds)
        self._catalog = catalog
        self._endpoints = endpoints
        self._authenticator = authenticator
        self._connections: dict[LocalConnection, None] = {}  # oldest first
        self._is_stopping = False
        self._server: asyncio.Server | None = None
        self._path: Path | None = None

    async def start(self, path: Path) -> None:
        """Listen if possible; otherwise clients use gRPC for all calls."""
        try:
            path.unlink(missing_ok=True)  # left over from a killed server; this one holds the directory's lock
            listener = _bound(path)
        except OSError as error:
            log.warning("local socket disabled, cannot listen on %s: %s", path, error)
            return
        self._path = path
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: LocalConnection(self), sock=listener)

    async def stop(self, drain_s: float) -> None:
        """Refuse new connections and requests, and let running ones finish within ``drain_s`` seconds."""
        self._is_stopping = True
        if self._server is not None and self._path is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        for connection in list(self._connections):
            connection.stop()
        deadline = asyncio.get_running_loop().time() + drain_s
        while self._connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_LOOK_S)
        for connection in list(self._connections):
            connection.abort()

    @contextmanager
    def one_more(self, connection: LocalConnection) -> Iterator[None]:
        """Count a connection as open inside the block. If too many clients have sent no hello, abort the oldest."""
        self._connections[connection] = None
        silent = [other for other in self._connections if other.is_silent]
        if len(silent) > MOST_SILENT:
            silent[0].abort()
        try:
            yield
        finally:
            del self._connections[connection]

    @property
    def welcome(self) -> bytes:
        """The answer to an accepted hello: it tells the client which server this is."""
        return replay_pb2.FrameWelcome(owner_id=self._catalog.owner.id).SerializeToString()

    def admit(self, hello: Content) -> Admitted | None:
        """Admit a client that is looking for this very server; None if it only asks which server this is."""
        try:
            said = replay_pb2.FrameHello.FromString(bytes(hello))
        except DecodeError as error:
            got = f"bytes that could not be parsed ({error})"
            raise errors.invalid_field(FieldError("hello", "a replay.v1.FrameHello", got)) from None
        if self._is_stopping:
            raise errors.shutting_down()
        if not said.method:
            self._caller_of(said)
            return None
        bounds = self._catalog.bounds
        bounds.check_local_connections(len(self._connections))
        if said.method not in METHODS:
            raise errors.invalid_field(FieldError("method", " or ".join(METHODS), repr(said.method)))
        endpoint, context = self._endpoints[said.method], tuple(said.trace_context.items())
        if (length := sum(map(len, chain.from_iterable(context)))) > MOST_CONTEXT:
            expected = f"at most {MOST_CONTEXT} characters"
            raise errors.invalid_field(FieldError("trace_context", expected, f"{length} characters"))
        with span(f"replay/{endpoint.name} opened", context) if endpoint.is_stream else nullcontext():
            caller = self._caller_of(said)
        has_spans = is_tracing() and not endpoint.is_stream
        return Admitted(endpoint, caller, partial(_traced, endpoint, context) if has_spans else endpoint.answer)

    def _caller_of(self, said: replay_pb2.FrameHello) -> Caller:
        # The equivalent gRPC metadata.
        metadata = [("authorization", said.authorization)] if said.authorization else []
        caller = self._authenticator.caller_of(metadata)
        caller.check(Right.any(), said.table)  # before the table is looked up: nobody else learns whether it exists
        self._catalog.find(said.table, said.table_uid)
        if not hmac.compare_digest(said.owner_id, self._catalog.owner.id):
            raise errors.invalid_field(FieldError("owner_id", "the id of this server", "that of another one"))
        return caller


async def _traced(endpoint: AnyEndpoint, context: Metadata, message: Content, call: Call) -> bytes:
    """Answer a unary call in a span."""
    await asyncio.sleep(0)  # what follows runs in a task, because the span is current only there
    with span(f"replay/{endpoint.name}", context):
        return await endpoint.answer(message, call)


def _bound(path: Path) -> socket.socket:
    """Bind a socket at ``path``, which may be longer than the limit on socket addresses."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        # Access to the folder controls who can connect.
        path.chmod(_SHARED if path.parent.stat().st_mode & stat.S_IXGRP else _PRIVATE)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener
