"""One connection: frames in, frames out."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, cast

from replay_proto import tcp
from replay_proto.frames import FrameError, FrameKind, FrameParser, FrameTooLongError, frame_head

from replay_server import errors
from replay_server.errors import RequestError

_QUEUED_BYTES = 4 << 20
"""While more than this waits to be answered, nothing more is read."""
_ABOUT_A_MESSAGE_BYTES = 64
"""What a message takes in the queue beside its content: empty ones would be free otherwise."""
_JOINED_BYTES = 1 << 16
"""Up to this length a content is copied behind its head; longer ones are sent in a second piece."""
_IN_A_ROW = 8
"""So many messages of one client that wait already are served before anybody else is."""
_FRAMES_AT_ONCE = 512
"""So many frames are taken out of what came before others have their turn: a read may bring 32,000 empty ones."""
_HELLO_BYTES = 1 << 20
"""Before it has said who it is, a client may not have us keep more."""


class FrameConnection(asyncio.Protocol):
    """Queues what the client sends, and holds back what it does not take in. Lives on the event loop."""

    def __init__(self, serve: Callable[[FrameConnection], Coroutine[Any, Any, None]]) -> None:
        """Be served by a task of its own as soon as the connection is made.

        Args:
            serve: serves a connection to its end.
        """
        self.client = ""
        """Address of the client's host; empty: this one."""
        self._serve = serve
        self._task: asyncio.Task[None] | None = None
        self._parser = FrameParser(_HELLO_BYTES)
        self._takes_messages = False
        self._hello_came = False
        self._is_behind = False  # frames came that were not taken yet
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._has_ended = False
        self._in_a_row = 0
        self._refusal: RequestError | None = None
        self._change: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is there."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has its methods, but not its type
        link: socket.socket = transport.get_extra_info("socket")
        if link.family != socket.AF_UNIX:
            peer = transport.get_extra_info("peername")
            if peer is None:  # it is gone already
                self._has_ended = True
                self._transport.abort()
                return
            self.client = peer[0]
            tcp.prepare(link, gives_up=False)
        self._task = asyncio.get_running_loop().create_task(self._serve(self))

    def data_received(self, data: bytes) -> None:
        """Something came."""
        if self._has_ended:
            return
        self._parser.feed(data)
        if not self._is_behind:
            self._take_frames()

    def take_messages(self, limit_bytes: int, setting: str) -> None:
        """After the hello, take frames of up to this length, which this setting sets."""
        self._takes_messages = True
        self._parser.limit_bytes = limit_bytes
        self._limit_setting = setting
        self._take_frames()

    def _take_frames(self) -> None:
        """Take the frames that came whole; if they are many, the rest in later turns of the loop."""
        self._is_behind = False
        try:
            for _ in range(_FRAMES_AT_ONCE):
                if not self._takes_messages and self._hello_came:
                    break
                if (taken := self._parser.take()) is None:
                    break
                self._take_in(*taken)
            else:
                self._is_behind = True
                asyncio.get_running_loop().call_soon(self._take_later)
        except FrameTooLongError as error:
            if not self._takes_messages:
                self._cut_off()
                return
            self._refusal = errors.too_large(
                "bytes of a request", error.limit_bytes, error.got_bytes, self._limit_setting
            )
            self._transport.pause_reading()
            self.end_reading()
            return
        except FrameError:
            self._cut_off()
            return
        if self._is_full:
            self._transport.pause_reading()
        self._wake()

    def _take_later(self) -> None:
        if self._has_ended:
            return
        self._take_frames()
        if not self._is_full and self._refusal is None:
            self._transport.resume_reading()

    @property
    def _is_full(self) -> bool:
        """Whether nothing more is to be read before some of what came was."""
        return self._is_behind or self._queued_bytes > _QUEUED_BYTES

    def connection_lost(self, _error: Exception | None) -> None:
        """The client is gone: nobody waits for what is being done."""
        self._has_ended = True
        self._wake()
        self.resume_writing()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client does not take in what it asked for."""
        self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """It does again."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    async def read(self) -> bytes | None:
        """The next message; None once there will be none.

        Raises:
            RequestError: TOO_LARGE, and there will be none.
        """
        self._in_a_row = self._in_a_row + 1 if self._queue else 0
        if self._in_a_row >= _IN_A_ROW:
            # Others come in between, however much one client has sent ahead; so does word that it is gone.
            self._in_a_row = 0
            await asyncio.sleep(0)
        while not self._queue:
            if self._refusal is not None:
                raise self._refusal
            if self._has_ended:
                return None
            self._change = asyncio.get_running_loop().create_future()
            try:
                await self._change
            finally:
                self._change = None
        message = self._queue.popleft()
        was_full = self._is_full
        self._queued_bytes -= len(message) + _ABOUT_A_MESSAGE_BYTES
        if was_full and not self._is_full and self._refusal is None:
            self._transport.resume_reading()
        return message

    async def write(self, content: bytes, kind: FrameKind = FrameKind.MESSAGE) -> None:
        """Send a frame; waits while the client has much to take in."""
        head = frame_head(len(content), kind)
        if len(content) < _JOINED_BYTES:
            self._transport.write(head + content)
        else:
            self._transport.writelines((head, content))
        if self._drained is not None:
            await self._drained

    def end_reading(self) -> None:
        """Take in nothing more, and let `read` say so once what came was read."""
        self._has_ended = True
        self._wake()

    def close(self) -> None:
        """End the connection once everything was sent."""
        self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def _take_in(self, kind: FrameKind, content: bytes) -> None:
        if kind is not FrameKind.MESSAGE:
            raise FrameError(f"expected a message from a client, got a frame of kind {kind}")
        self._hello_came = True
        self._queue.append(content)
        self._queued_bytes += len(content) + _ABOUT_A_MESSAGE_BYTES

    def _cut_off(self) -> None:
        """Whoever sends this does not speak our language; there is nothing to answer."""
        self._has_ended = True
        self._transport.abort()

    def _wake(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)
