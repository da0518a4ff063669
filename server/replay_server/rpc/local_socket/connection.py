"""A connection to the local socket. The client sends a hello, then requests to one endpoint.

The requests are answered in order. Those that do not have to wait are answered synchronously in `buffer_updated`,
without a task.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import grpc
from replay_proto.frames import Content, FrameError, FrameKind, FrameParser, FrameTooLongError, frame_head

from replay_server import errors
from replay_server.auth import Caller
from replay_server.errors import RequestError
from replay_server.rpc.call import Call, Stream
from replay_server.rpc.endpoint import AnyEndpoint
from replay_server.rpc.local_socket.long_frames import LongFrame
from replay_server.rpc.statuses import to_status

if TYPE_CHECKING:
    from replay_server.rpc.local_socket.listener import LocalSocket


T = TypeVar("T")


def start(work: Coroutine[Any, Any, T]) -> T | asyncio.Task[T]:
    """Run a coroutine until it first waits. Return its result or, if it has to wait, a task that runs the rest.

    Most requests never wait, so they need no task. Python 3.12 has this as `asyncio.eager_task_factory`; Python 3.11
    does not. Before it first waits, the coroutine must not use `asyncio.timeout` or `asyncio.current_task`, because it
    is not yet in a task.
    """
    try:
        awaited = work.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    return asyncio.get_running_loop().create_task(_rest(work, awaited))


@types.coroutine
def _rest(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    try:
        yield awaited
    except BaseException as error:  # the awaited operation failed, or the task was canceled
        try:
            awaited = work.throw(error)
        except StopIteration as finished:
            result: T = finished.value
            return result
        return (yield from _rest(work, awaited))
    return (yield from work.__await__())


_HELLO_BYTES: Final = 1 << 14
"""Maximum size of a hello, so that it is never a long frame: its caller is not known yet."""
_CHUNK_BYTES: Final = 1 << 15
"""Memory of a connection before its client has a share of the memory for frames."""
_HELLO_TIMEOUT_S: Final = 2.0
"""Time limit for the hello; our client waits equally long for the reply."""
_JOINED_BYTES: Final = 1 << 16
"""Contents below this size are joined with their head before they are sent; larger ones are not."""
_IN_A_ROW: Final = 8
"""Maximum requests of one client that are answered before requests of other clients."""


class Admitted(NamedTuple):
    """An admitted connection."""

    endpoint: AnyEndpoint
    caller: Caller
    answer: Callable[[Content, Call], Coroutine[Any, Any, bytes]]
    """Answers a request, see `Endpoint.answer`."""


class LocalConnection(asyncio.BufferedProtocol):
    """A connection of one client; see the module's docstring. All methods run on the event loop."""

    def __init__(self, host: LocalSocket) -> None:
        self._host = host
        self._open = ExitStack()  # resources of the connection
        self._parser = FrameParser(_HELLO_BYTES, _CHUNK_BYTES)
        self._admitted: Admitted | None = None
        self._stream: Stream | None = None
        self._long: LongFrame | None = None  # of an admitted client
        self._call: Call | None = None  # the current request, until its reply is sent
        self._waiting: asyncio.Task[bytes] | None = None  # computes the reply to a request that has to wait
        self._ending: RequestError | None = None
        self._may_write = self._is_reading = True
        self._is_closed = self._is_stopping = self._is_refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the client."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the same methods, but another type
        self._loop = asyncio.get_running_loop()
        self._silence = self._loop.call_later(_HELLO_TIMEOUT_S, self.abort)
        self._open.callback(self._silence.cancel)
        self._open.enter_context(self._host.one_more(self))

    def connection_lost(self, _error: Exception | None) -> None:
        """Cancel the current request: the client is gone."""
        self._is_closed = True
        if self._stream is not None and not self._is_refused:
            self._count_end(grpc.StatusCode.OK if self._waiting is None else grpc.StatusCode.CANCELLED)
        if self._waiting is not None:
            self._waiting.cancel()
        else:
            self._answer_is_sent()
        self._open.close()

    def get_buffer(self, _size_hint: int) -> memoryview:
        """Memory for the next received bytes."""
        return self._parser.space()

    def buffer_updated(self, count: int) -> None:
        """Process received bytes."""
        if not self._is_closed:
            self._parser.received(count)
            self._go_on()

    def pause_writing(self) -> None:
        """Stop answering: the client does not read its replies."""
        self._may_write = False

    def resume_writing(self) -> None:
        """Continue answering."""
        self._may_write = True
        if self._waiting is None:
            self._answer_is_sent()
        self._go_on()

    @property
    def is_silent(self) -> bool:
        """Whether the client has not sent its hello yet."""
        return self._admitted is None

    def stop(self) -> None:
        """Stop reading, answer the requests received so far, then refuse the client. Abort if it has sent no hello."""
        if self._admitted is None:
            self.abort()
            return
        self._is_stopping = True
        self._go_on()

    def abort(self) -> None:
        """Close the connection immediately."""
        self._is_closed = True
        self._transport.abort()

    def _end(self, refusal: RequestError) -> None:
        """Refuse the client once the current reply has been sent."""
        self._ending = refusal
        self._go_on()

    @property
    def _is_free(self) -> bool:
        return self._call is None and self._may_write and not self._is_closed

    def _go_on(self) -> None:
        """Answer received requests until one has to wait."""
        for _ in range(_IN_A_ROW):
            if not self._is_free:
                break
            if self._ending is not None:
                self._refuse_request(self._ending)
                break
            message = self._next_message()
            if message is None:
                if self._is_stopping and not self._is_closed:
                    self._refuse(errors.shutting_down())
                break
            self._answer(message)
        else:
            self._loop.call_soon(self._go_on)  # let other clients run
        self._read_if_there_is_room()

    def _next_message(self) -> Content | None:
        """Return the next complete message, or None. End the connection if the client violates the protocol."""
        try:
            taken = self._parser.take()
        except FrameTooLongError as error:
            if self._admitted is None:
                self.abort()
            else:
                most, setting = self._admitted.endpoint.longest
                self._refuse(errors.too_large("bytes of a request", most, error.got_bytes, setting))
            return None
        except FrameError:
            self.abort()
            return None
        if taken is not None and taken[0] is not FrameKind.MESSAGE:
            self.abort()
            return None
        if taken is None:
            return None
        if self._long is not None and self._long.held:
            self._long.complete()
        return taken[1]

    def _answer(self, message: Content) -> None:
        if self._admitted is None:
            self._greet(message)
            return
        self._call = call = Call(self._admitted.caller, self._stream)
        self._admitted.endpoint.figures.started += self._stream is None
        try:
            answer = start(self._admitted.answer(message, call))
        except Exception as error:
            self._refuse_request(error)
            return
        if isinstance(answer, asyncio.Task):
            self._waiting = answer
            answer.add_done_callback(self._answer_is_made)
        else:
            self._send(answer)

    def _answer_is_made(self, made: asyncio.Task[bytes]) -> None:
        """Send the reply to a request that had to wait."""
        self._waiting = None
        error = None if made.cancelled() else made.exception()
        if self._is_closed or made.cancelled():
            if self._stream is None and (made.cancelled() or error is not None):
                self._count_end(grpc.StatusCode.CANCELLED)
            self._answer_is_sent()
        elif isinstance(error, Exception):
            self._refuse_request(error)
        else:
            self._send(made.result())
        self._go_on()

    def _greet(self, hello: Content) -> None:
        self._silence.cancel()
        try:
            self._admitted = self._host.admit(hello)
            if self._admitted is None:
                self._send(self._host.welcome)
                self._close_refused()
                return
            if self._admitted.endpoint.is_stream:
                self._stream = self._open.enter_context(self._opened(self._admitted))
        except RequestError as refusal:
            if self._admitted is not None:
                self._admitted.endpoint.as_refusal(refusal)  # counts it
            self._refuse(refusal)
            return
        self._parser.limit_bytes, _ = self._admitted.endpoint.longest
        self._long = LongFrame(
            self._host.long_frames, self._admitted.caller.identity, self._go_on, self._refuse_unfinished
        )
        self._open.callback(self._long.close)
        self._parser.may_begin, self._parser.may_grow = self._long.may_begin, self._long.may_grow
        self._send(self._host.welcome)

    @contextmanager
    def _opened(self, admitted: Admitted) -> Iterator[Stream]:
        stream, caller = Stream(self._end), admitted.caller
        with (
            admitted.endpoint.figures.at_work(),
            self._host.streams.one_more(f"unix:{id(self)}", caller.identity),
            caller.while_valid(self._end),
        ):
            try:
                yield stream
            finally:
                stream.close()

    def _send(self, content: bytes, kind: FrameKind = FrameKind.MESSAGE) -> None:
        head = frame_head(len(content), kind)
        if len(content) < _JOINED_BYTES:
            self._transport.write(head + content)
        else:
            self._transport.writelines((head, content))
        if self._may_write:
            self._answer_is_sent()

    def _answer_is_sent(self) -> None:
        """Release the resources of the current request."""
        if self._call is not None:
            self._call.sent()
            self._call = None

    def _refuse_request(self, error: Exception) -> None:
        """Refuse the current request. On a stream, this also ends the stream."""
        assert self._admitted is not None
        refusal = self._admitted.endpoint.as_refusal(error)
        self._send(to_status(refusal).SerializeToString(), FrameKind.STATUS)
        if self._stream is not None:
            self._close_refused()

    def _refuse(self, refusal: RequestError) -> None:
        """Refuse the client, and close the connection when everything has been sent."""
        if self._stream is not None:
            self._refuse_request(refusal)
            return
        self._send(to_status(refusal).SerializeToString(), FrameKind.STATUS)
        self._close_refused()

    def _refuse_unfinished(self, refusal: RequestError) -> None:
        """Refuse a client that does not finish a long frame. Its memory is freed at once, even if nothing is read."""
        self._refuse(refusal)
        self._parser = FrameParser(_HELLO_BYTES, _CHUNK_BYTES)

    def _close_refused(self) -> None:
        self._is_refused = self._is_closed = True
        self._transport.close()

    def _count_end(self, status: grpc.StatusCode) -> None:
        """Count the end of a call or stream that was not refused."""
        assert self._admitted is not None
        self._admitted.endpoint.figures.ended[status] += 1

    def _read_if_there_is_room(self) -> None:
        """Pause reading if the receive buffer is full or the server is stopping; otherwise, resume reading."""
        if self._is_closed:
            return
        wants = self._parser.has_space and not self._is_stopping
        if wants != self._is_reading:
            self._is_reading = wants
            self._transport.resume_reading() if wants else self._transport.pause_reading()
