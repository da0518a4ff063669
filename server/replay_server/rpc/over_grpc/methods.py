"""gRPC handlers for endpoints. No part of a call's body is received before its caller is identified."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

import grpc
from grpc_status import rpc_status
from replay_proto.access.serving import only_message
from replay_proto.tracing import span

from replay_server.auth import Authenticator, Caller
from replay_server.errors import RequestError
from replay_server.rpc.call import Call, OpenStreams, Stream
from replay_server.rpc.endpoint import AnyEndpoint
from replay_server.rpc.over_grpc.connections import Connections
from replay_server.rpc.over_grpc.unfinished import Connection, Unfinished
from replay_server.rpc.statuses import to_status

Context = grpc.aio.ServicerContext[bytes, bytes]


def grpc_handler(
    endpoint: AnyEndpoint,
    authenticator: Authenticator,
    streams: OpenStreams,
    connections: Connections,
    unfinished: Unfinished,
) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Create a gRPC handler that serves an endpoint to authenticated callers.

    ``connections`` limits the callers' connections, ``streams`` their open streams, and ``unfinished`` the memory of
    messages that they do not finish.
    """

    def caller_of(context: Context) -> Caller:
        caller = authenticator.caller_of(context.invocation_metadata() or (), context.peer())
        connections.admit(context.peer())
        return caller

    figures = endpoint.figures

    async def one_message(_requests: object, context: Context) -> bytes:
        figures.started += 1
        try:
            with span(f"replay/{endpoint.name}", context.invocation_metadata() or ()):
                call = Call(caller_of(context))
                connection = unfinished.connection(context.peer(), call.caller.identity)
                with _Reader(context, connection) as reader:
                    message = await only_message(reader)
                answer = await _answer(endpoint, message, call, context)
                connection.replied(len(answer))
                return answer
        except asyncio.CancelledError:
            figures.ended[grpc.StatusCode.CANCELLED] += 1
            raise
        except Exception as error:
            await _refuse(context, error, endpoint)
            return b""

    async def messages(_requests: object, context: Context) -> None:
        with figures.at_work():
            try:
                with span(f"replay/{endpoint.name} opened", context.invocation_metadata() or ()):
                    caller = caller_of(context)
                with streams.one_more(context.peer(), caller.identity):
                    connection = unfinished.connection(context.peer(), caller.identity)
                    await _answer_each(endpoint, caller, context, connection)
                figures.ended[grpc.StatusCode.OK] += 1
            except asyncio.CancelledError:
                figures.ended[grpc.StatusCode.CANCELLED] += 1
                raise
            except Exception as error:
                await _refuse(context, error, endpoint)

    if endpoint.is_stream:
        return grpc.stream_stream_rpc_method_handler(messages)
    return grpc.stream_unary_rpc_method_handler(one_message)


async def _answer(endpoint: AnyEndpoint, data: bytes, call: Call, context: Context) -> bytes:
    """Compute the reply. The call's resources are released when gRPC has sent it."""
    try:
        answer = await endpoint.answer(data, call)
    except BaseException:
        call.sent()
        raise
    if call.holds_something:

        def sent(_: Context) -> None:
            call.sent()

        context.add_done_callback(sent)  # type: ignore[arg-type]  # the stubs lack the context argument
    return answer


async def _answer_each(endpoint: AnyEndpoint, caller: Caller, context: Context, connection: Connection) -> None:
    reader = _Reader(context, connection)
    stream = Stream(reader.end)
    try:
        with caller.while_valid(reader.end), reader:
            while isinstance(data := await reader.read(), bytes):
                call = Call(caller, stream)
                try:
                    answer = await endpoint.answer(data, call)
                    connection.replied(len(answer))
                    await context.write(answer)
                finally:
                    call.sent()
    finally:
        stream.close()


class _Reader:
    """Reads a stream that other tasks may end. The stream ends only between replies, so that its status can be sent."""

    def __init__(self, context: Context, connection: Connection) -> None:
        self._context = context
        self._connection = connection
        self._task = asyncio.current_task()  # the task that serves the stream
        self._reading = False
        self._refusal: RequestError | None = None

    def __enter__(self) -> Self:
        """Register with the connection, before the first message is read."""
        self._connection.begin(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.finish(self)

    def end(self, refusal: RequestError) -> None:
        """End the stream: `read` raises this refusal instead of returning the next message."""
        self._refusal = refusal
        if self._reading and self._task is not None:
            self._task.cancel()

    async def read(self) -> object:
        """Return the next message as bytes; at the end of the stream, return a value of another type.

        Raises:
            RequestError: the refusal passed to `end`.
        """
        if self._refusal is not None:
            raise self._refusal
        self._reading = True
        try:
            message = await self._context.read()
            if isinstance(message, bytes):
                self._connection.whole(len(message))
            return message
        except asyncio.CancelledError:
            if self._refusal is not None:
                raise self._refusal from None
            raise
        finally:
            self._reading = False


async def _refuse(context: Context, error: Exception, endpoint: AnyEndpoint) -> None:
    """End a call with the status for an error."""
    if isinstance(error, grpc.aio.InternalError):
        endpoint.figures.errors += 1
        endpoint.figures.ended[grpc.StatusCode.CANCELLED] += 1
        raise asyncio.CancelledError  # the caller ended the call while it was answered
    refusal = endpoint.as_refusal(error)
    _forget_frames(error)
    await abort(context, refusal)


async def abort(context: Context, refusal: RequestError) -> None:
    """End a call with the status of a refusal. The handler must return afterwards; its reply is ignored.

    The error that `context.abort` raises is suppressed here, because gRPC raises it again. If the handler raised it,
    its frames and the call would refer to each other, and stay in memory until the next full garbage collection.
    """
    status = rpc_status.to_status(to_status(refusal))
    with suppress(grpc.aio.AbortError):
        await context.abort(status.code, status.details, status.trailing_metadata)


def _forget_frames(error: BaseException | None) -> None:
    """Clear the traceback of an error.

    gRPC keeps the exception of a call in a reference cycle. Through the exception's traceback, this cycle would keep
    dropped tables and their files alive.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
