"""Calls in frames, beside gRPC: the same handlers, without HTTP/2.

For a learner step of a few kilobytes, gRPC in Python costs several times what the table's own work does; megabytes it
copies four times. See `FrameHello` in the contract.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
from replay_server.service.frames.connection import FrameConnection
from replay_server.service.rpc import Streaming, Unary
from replay_server.service.transport import CAME_IN_FRAMES

METHODS: Final = ("Learn", "Sample", "UpdatePriorities")
"""What can be called: what a learner does in every step."""
_HELLO_TIMEOUT_S: Final = 2.0
"""How long a connection may stay silent before its hello; as long as our client waits for its answer."""
MOST_SILENT: Final = 64
"""Most connections that have not said hello. Clients say it at once, so few are ever in this state."""
_STATUS_DETAILS: Final = "grpc-status-details-bin"

Handlers = Mapping[str, Unary | Streaming]


class _RefusedError(Exception):
    """A handler has refused a request, and the client knows."""


class _FrameContext:
    """All that the handlers of `service.rpc` use of a gRPC context."""

    def __init__(self, connection: FrameConnection, hello: replay_pb2.FrameHello, is_stopping: Callable[[], bool]):
        self._connection = connection
        self._hello = hello
        self._when_sent: list[Callable[[Any], None]] = []
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
        """A name for the connection, as gRPC would write it, with a number of its own in place of the port."""
        client, number = self._connection.client, id(self._connection)
        if not client:
            return f"unix:{number}"
        return f"ipv6:[{client}]:{number}" if ":" in client else f"ipv4:{client}:{number}"

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have it called once the answer to this request was sent, or never will be."""
        self._when_sent.append(callback)

    def done(self) -> None:
        """The answer was sent, or never will be."""
        while self._when_sent:
            self._when_sent.pop()(self)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """What the client said of itself."""
        return metadata_of(self._hello)


class FrameListener(ABC):
    """Listens somewhere, and serves who comes."""

    def __init__(self, catalog: Catalog, handlers: Handlers) -> None:
        """Prepare; nothing listens yet.

        Args:
            catalog: the tables.
            handlers: by name of the method.
        """
        self._catalog = catalog
        self._handlers = handlers
        self._connections: set[FrameConnection] = set()
        self._per_client: Counter[str] = Counter()
        self._silent: dict[FrameConnection, None] = {}  # the oldest first
        self._is_stopping = False

    @abstractmethod
    def _admit(self, hello: replay_pb2.FrameHello) -> None:
        """Look at what somebody says who wants to call.

        Raises:
            RequestError: if they may not.
        """

    @abstractmethod
    def _close_listeners(self) -> None:
        """Take no new connections."""

    async def stop(self, drain_s: float) -> None:
        """Take no new connections, refuse what comes, and let what is at work end for so many seconds."""
        self._is_stopping = True
        self._close_listeners()
        for connection in self._connections:
            connection.end_reading()
        deadline = asyncio.get_running_loop().time() + drain_s
        while self._connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()

    def _connection(self) -> FrameConnection:
        """For a client that has come."""
        return FrameConnection(self._serve)

    async def _serve(self, connection: FrameConnection) -> None:
        CAME_IN_FRAMES.set(True)
        if self._is_stopping:
            connection.end_reading()
        with self._one_more(connection):
            try:
                with suppress(_RefusedError):
                    await self._serve_method(connection)
            except RequestError as error:
                await connection.write(error.to_status().SerializeToString(), FrameKind.STATUS)
            finally:
                connection.close()

    @contextmanager
    def _one_more(self, connection: FrameConnection) -> Iterator[None]:
        """Count a connection while it is served."""
        client = connection.client
        self._connections.add(connection)
        self._per_client[client] += 1
        try:
            yield
        finally:
            self._connections.discard(connection)
            self._per_client[client] -= 1
            if not self._per_client[client]:
                del self._per_client[client]

    async def _hello(self, connection: FrameConnection) -> bytes | None:
        """The first message of a connection; None if it does not come in time."""
        self._silent[connection] = None
        if len(self._silent) > MOST_SILENT:
            self._drop_a_silent_one()
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                return await connection.read()
        except TimeoutError:
            return None
        finally:
            self._silent.pop(connection, None)

    def _drop_a_silent_one(self) -> None:
        """Close the oldest silent connection of the client with most of them: it cannot crowd others out."""
        (client, _), *_ = Counter(connection.client for connection in self._silent).most_common(1)
        oldest = next(connection for connection in self._silent if connection.client == client)
        del self._silent[oldest]
        oldest.abort()

    async def _serve_method(self, connection: FrameConnection) -> None:
        first = await self._hello(connection)
        if first is None:
            return
        hello = self._checked_hello(first, connection)
        connection.take_messages(self._catalog.bounds.max_head_bytes, self._catalog.bounds.head_setting)
        await connection.write(b"")
        context = cast(Any, _FrameContext(connection, hello, lambda: self._is_stopping))
        handler = self._handlers[hello.method]
        if isinstance(handler, Streaming):
            await handler.serve(context)
            return
        while (request := await context.read()) is not None:
            try:
                with suppress(_RefusedError):
                    await connection.write(await handler.answer(request, context))
            finally:
                context.done()

    def _checked_hello(self, message: bytes, connection: FrameConnection) -> replay_pb2.FrameHello:
        try:
            hello = replay_pb2.FrameHello.FromString(message)
        except DecodeError as error:
            raise _not_a_hello(error) from None
        if self._is_stopping:
            raise errors.shutting_down()
        most, got = self._catalog.bounds.max_connections_per_client, self._per_client[connection.client]
        if got > most:
            raise errors.too_large("connections of one client", most, got, "max_connections_per_client of the server")
        if hello.method not in METHODS:
            raise errors.invalid_field(FieldError("method", " or ".join(METHODS), repr(hello.method)))
        self._admit(hello)
        return hello


def metadata_of(hello: replay_pb2.FrameHello) -> tuple[tuple[str, str], ...]:
    """What a call over gRPC would carry to say who it is from."""
    return (("authorization", hello.authorization),) if hello.authorization else ()


def _not_a_hello(error: DecodeError) -> RequestError:
    return errors.invalid_field(
        FieldError("hello", "a replay.v1.FrameHello", f"bytes that could not be parsed ({error})")
    )


def _plain_status(code: grpc.StatusCode, details: str) -> bytes:
    return bytes(status_pb2.Status(code=cast(Any, code.value)[0], message=details).SerializeToString())
