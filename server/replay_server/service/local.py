"""Calls from clients on this host over a unix-domain socket, beside gRPC: the same handlers, without HTTP/2.

For a learner step of a few kilobytes, gRPC in Python costs several times what the table's own work does. A client that
can read a table's directory has shown that it is on this host and may do so; see `LocalHello` in the contract.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import socket
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from replay_proto.errors import FieldError
from replay_proto.frames import FrameKind
from replay_proto.v1 import replay_pb2

from replay_server import errors
from replay_server.catalog import Catalog
from replay_server.errors import RequestError
from replay_server.service.frame_connection import FrameConnection

log = logging.getLogger(__name__)

SOCKET_NAME: Final = ".socket"
"""In the folder of the tables; no table has such a name."""
_PRIVATE: Final = 0o600
_SHARED: Final = 0o660
"""Modes of the socket, for a folder of the user's own and for one that a group may read."""
METHODS: Final = ("Learn", "Sample", "UpdatePriorities")
"""What can be called: what a learner does in every step."""
_STATUS_DETAILS: Final = "grpc-status-details-bin"

Handlers = Mapping[str, "grpc.RpcMethodHandler[bytes, bytes]"]


class _RefusedError(Exception):
    """A handler has refused a request, and the client knows."""


class _LocalContext:
    """All that the handlers of `service.rpc` use of a gRPC context."""

    def __init__(self, connection: FrameConnection, hello: replay_pb2.LocalHello, is_stopping: Callable[[], bool]):
        self._connection = connection
        self._hello = hello
        self._is_stopping = is_stopping

    async def read(self) -> object:
        """The next request; something else than bytes at the end."""
        message = await self._connection.read()
        if message is None and self._is_stopping():
            raise errors.shutting_down()
        return message

    async def write(self, message: bytes) -> None:
        """Answer it."""
        await self._connection.write(message)

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Any) -> NoReturn:
        """Refuse it."""
        status = dict(trailing_metadata).get(_STATUS_DETAILS) or _plain_status(code, details)
        await self._connection.write(status, FrameKind.STATUS)
        raise _RefusedError

    def peer(self) -> str:
        """A name for the connection."""
        return f"local:{id(self._connection)}"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """What the client said of itself."""
        return (("authorization", self._hello.authorization),) if self._hello.authorization else ()


class LocalServer:
    """Listens on a unix-domain socket in the server's own directory."""

    def __init__(self, catalog: Catalog, handlers: Handlers, limit_bytes: int) -> None:
        """Prepare; nothing listens yet.

        Args:
            catalog: the tables.
            handlers: by name of the method, as gRPC has them.
            limit_bytes: how long a message may be.
        """
        self._catalog = catalog
        self._handlers = handlers
        self._limit_bytes = limit_bytes
        self._connections: set[FrameConnection] = set()
        self._server: asyncio.Server | None = None
        self._path: Path | None = None
        self._is_stopping = False

    async def start(self, path: Path) -> None:
        """Listen, if that can be done there: where not, clients make all their calls over gRPC."""
        try:
            path.unlink(missing_ok=True)  # of a server that was killed; the directory's lock is ours
            listener = _bound(path)
        except OSError as error:
            log.warning("no calls without gRPC: cannot listen on %s: %s", path, error)
            return
        self._path = path
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: FrameConnection(self._serve, self._limit_bytes), sock=listener
        )

    async def stop(self, drain_s: float) -> None:
        """Take no new connections, refuse what comes, and let what is at work end for so many seconds."""
        self._is_stopping = True
        if self._server is None or self._path is None:
            return
        self._server.close()
        self._path.unlink(missing_ok=True)
        for connection in self._connections:
            connection.end_reading()
        deadline = asyncio.get_running_loop().time() + drain_s
        while self._connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()

    async def _serve(self, connection: FrameConnection) -> None:
        self._connections.add(connection)
        if self._is_stopping:
            connection.end_reading()
        try:
            with suppress(_RefusedError):
                await self._serve_method(connection)
        except RequestError as error:
            await connection.write(error.to_status().SerializeToString(), FrameKind.STATUS)
        finally:
            self._connections.discard(connection)
            connection.close()

    async def _serve_method(self, connection: FrameConnection) -> None:
        first = await connection.read()
        if first is None:
            return
        hello = self._checked_hello(first)
        await connection.write(b"")
        context = _LocalContext(connection, hello, lambda: self._is_stopping)
        handler = self._handlers[hello.method]
        if handler.stream_stream is not None:
            await cast(Any, handler.stream_stream)(None, context)
            return
        unary = cast(Any, handler.unary_unary)
        while (request := await context.read()) is not None:
            with suppress(_RefusedError):
                await connection.write(await unary(request, context))

    def _checked_hello(self, message: bytes) -> replay_pb2.LocalHello:
        try:
            hello = replay_pb2.LocalHello.FromString(message)
        except DecodeError as error:
            raise _not_a_hello(error) from None
        if self._is_stopping:
            raise errors.shutting_down()
        most = self._catalog.bounds.max_streams_per_client
        if len(self._connections) > most:
            raise errors.too_large(
                "connections to the socket", most, len(self._connections), "max_streams_per_client of the server"
            )
        if hello.method not in METHODS:
            raise errors.invalid_field(FieldError("method", " or ".join(METHODS), repr(hello.method)))
        table = self._catalog.find(hello.table, hello.table_uid)
        if not hmac.compare_digest(hello.nonce, table.directory.nonce):
            raise errors.invalid_field(FieldError("nonce", "what the table's file holds", "something else"))
        return hello


def _bound(path: Path) -> socket.socket:
    """A socket in a directory whose path may be longer than a socket's address."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        # Who gets into the folder may connect.
        path.chmod(_SHARED if path.parent.stat().st_mode & stat.S_IXGRP else _PRIVATE)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener


def _not_a_hello(error: DecodeError) -> RequestError:
    return errors.invalid_field(FieldError("hello", "a replay.v1.LocalHello", f"bytes that are none ({error})"))


def _plain_status(code: grpc.StatusCode, details: str) -> bytes:
    return bytes(status_pb2.Status(code=cast(Any, code.value)[0], message=details).SerializeToString())
