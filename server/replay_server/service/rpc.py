"""How every RPC runs: raw bytes in and out, refusals as typed errors, figures kept.

Messages arrive and leave as bytes, because those that carry rows are read and built in place. A
handler is an async function of one parsed request; a stream's handler is one per stream. Nothing of a call's body is
received before its caller is known.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_status import rpc_status
from replay_proto.access.serving import only_message
from replay_proto.errors import FieldError
from replay_proto.framing import Framed

from replay_server import errors
from replay_server.access.caller import CALLER_AT_WORK, Caller
from replay_server.bounds import Bounds
from replay_server.budgets import Budget
from replay_server.calls import begin_call
from replay_server.errors import RequestError
from replay_server.service.requests import RequestReader, request_reader
from replay_server.service.rights import Rpc
from replay_server.statistics.methods import MethodFigures

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
Context = grpc.aio.ServicerContext[bytes, bytes]
UnaryHandler = Callable[[Framed[M]], Awaitable[bytes]]
CallerHandler = Callable[[Framed[M], Caller], Awaitable[bytes]]
MessageHandler = Callable[[Framed[M]], Awaitable[bytes]]


class OpenStreams:
    """How many streams each client and each caller has open. A client is a connection, which a channel has one of."""

    def __init__(self, bounds: Bounds) -> None:
        """Begin with none."""
        self._most = bounds.max_streams_per_connection
        self._open: Counter[str] = Counter()
        self._of_callers = Budget("streams", "max_streams of the server", bounds.max_streams, bounds.caller_share)

    @contextmanager
    def one_more(self, client: str, caller: str) -> Iterator[None]:
        """Count a stream while it is open.

        Raises:
            RequestError: TOO_LARGE.
        """
        if self._open[client] >= self._most:
            setting = "max_streams_per_connection of the server"
            raise errors.too_large("streams of one connection", self._most, self._open[client] + 1, setting)
        self._open[client] += 1
        try:
            with self._of_callers.held(caller):
                yield
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]


class Unary:
    """An RPC of one request and one answer."""

    def __init__(self, message_type: type[M], handler: CallerHandler[M], rpc: Rpc) -> None:
        """Serve it by this handler."""
        self._handler: CallerHandler[Any] = handler
        self._rpc = rpc
        self._read_request: RequestReader[Any] = request_reader(message_type, rpc.demand, rpc.bounds)

    def for_grpc(self) -> grpc.RpcMethodHandler[bytes, bytes]:
        """As gRPC takes it; see `replay_proto.access.serving`."""

        async def call(_requests: object, context: Context) -> bytes:
            return await self.answer(None, context)

        return grpc.stream_unary_rpc_method_handler(call)

    async def answer(self, data: bytes | None, context: Context) -> bytes:
        """Answer a request; None: the caller's message is still to come."""
        figures = self._rpc.figures
        with figures.at_work():
            try:
                caller = _caller(self._rpc, context)
                if data is None:
                    data = await only_message(context)
                with figures.timed():
                    return await _answered(context, caller, self._handler(self._read_request(data, caller, ""), caller))
            except Exception as error:
                await refuse(context, error, figures)


def unary(message_type: type[M], handler: UnaryHandler[M], rpc: Rpc) -> Unary:
    """An RPC whose answer does not depend on who calls."""

    async def handle(request: Framed[M], _: Caller) -> bytes:
        return await handler(request)

    return Unary(message_type, handle, rpc)


class OpenStream:
    """A stream while it is open. Others may end it, but never amid an answer: its status could not be sent any more."""

    def __init__(self) -> None:
        """Belong to the task that serves the stream."""
        self._task = asyncio.current_task()
        self._reading = False
        self._refusal: RequestError | None = None

    def end(self, refusal: RequestError) -> None:
        """Let the stream end with this refusal instead of its next message."""
        self._refusal = refusal
        if self._reading and self._task is not None:
            self._task.cancel()

    async def read(self, context: Context) -> object:
        """The next message, or something else than bytes at the end of the stream.

        Raises:
            RequestError: the refusal that somebody ended the stream with.
        """
        if self._refusal is not None:
            raise self._refusal
        self._reading = True
        try:
            return await context.read()
        except asyncio.CancelledError:
            if self._refusal is not None:
                raise self._refusal from None
            raise
        finally:
            self._reading = False


class Streaming:
    """An RPC in which each message of a stream is answered by one message, in order."""

    def __init__(
        self, message_type: type[M], open_stream: Callable[[OpenStream], Any], rpc: Rpc, streams: OpenStreams
    ) -> None:
        """Serve it.

        Args:
            message_type: type of the requests.
            open_stream: makes a context manager for each stream; what it yields is the stream's `MessageHandler`.
            rpc: what else belongs to it; its messages have a `table`, which later ones of a stream may leave out.
            streams: how many each client may have.
        """
        self._open_stream, self._rpc, self._streams = open_stream, rpc, streams
        self._read_request: RequestReader[Any] = request_reader(message_type, rpc.demand, rpc.bounds)

    def for_grpc(self) -> grpc.RpcMethodHandler[bytes, bytes]:
        """As gRPC takes it."""

        async def call(_requests: object, context: Context) -> None:
            await self.serve(context)

        return grpc.stream_stream_rpc_method_handler(call)

    async def serve(self, context: Context) -> None:
        """Serve a stream to its end."""
        figures = self._rpc.figures
        with figures.at_work():
            try:
                caller, table = _caller(self._rpc, context), ""
                stream, at_work = OpenStream(), begin_call(caller.identity)
                with (
                    self._streams.one_more(context.peer(), caller.identity),
                    caller.while_valid(stream.end),
                    self._open_stream(stream) as handler,
                ):
                    while isinstance(data := await stream.read(context), bytes):
                        began = time.perf_counter()
                        request = self._read_request(data, caller, table)
                        table = request.head.table or table
                        try:
                            answer = await handler(request)
                            figures.answered(time.perf_counter() - began)
                            await context.write(answer)
                        finally:
                            at_work.sent()
            except Exception as error:
                await refuse(context, error, figures)


async def _answered(context: Context, caller: Caller, answering: Awaitable[bytes]) -> bytes:
    """The one answer of a call. What the call holds is given back once gRPC has sent it."""
    at_work = begin_call(caller.identity)
    try:
        answer = await answering
    except BaseException:
        at_work.sent()
        raise
    if at_work.holds_something:

        def sent(_: Context) -> None:
            at_work.sent()

        context.add_done_callback(sent)  # type: ignore[arg-type]  # the stubs have it called without the context
    return answer


def _caller(rpc: Rpc, context: Context) -> Caller:
    """Who calls.

    Raises:
        RequestError: UNAUTHENTICATED.
    """
    caller = rpc.authenticator.caller_of(context.invocation_metadata() or (), context.peer())
    CALLER_AT_WORK.set(caller)
    return caller


def _as_request_error(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if isinstance(error, FieldError):
        return errors.invalid_field(error)
    log.error("a request failed", exc_info=error)
    return errors.internal()


def _forget_frames(error: BaseException | None) -> None:
    """Let go of the frames that an error passed through.

    gRPC keeps the exception that ended a call in a cycle, and with it what this one refers to. A table that is dropped
    would live on in there, and so would its files.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


async def refuse(context: Context, error: Exception, figures: MethodFigures) -> NoReturn:
    """End a call with the status that fits the error; an unexpected one is logged."""
    figures.errors += 1
    if isinstance(error, grpc.aio.InternalError):
        raise asyncio.CancelledError  # the caller ended the call while it was answered
    status = rpc_status.to_status(_as_request_error(error).to_status())
    _forget_frames(error)
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise asyncio.CancelledError  # abort() never returns; its type does not say so
