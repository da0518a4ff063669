"""A stream of requests and replies that reconnects when it breaks; see `replay_client._transport.answered_stream`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic

from replay_proto.frames import Content

from replay_client._transport.connection import StreamMethod
from replay_client._transport.pending import PendingRequests, R
from replay_client.aio._connection import Connection, MessageStream
from replay_client.aio._frames import Changes, FrameStream, LocalPath
from replay_client.errors import ClosedError


class AnsweredStream(Generic[R]):
    """Sends pending requests in a background task while its stream is open."""

    def __init__(
        self,
        connection: Connection,
        method: StreamMethod,
        pending: PendingRequests[R],
        *,
        before_waiting: Callable[[], float | None] = lambda: None,
        path: LocalPath,
    ) -> None:
        """Create the stream; the first request opens it. Call `notify` after adding some to ``pending``.

        ``before_waiting`` is called when there is nothing to send. It returns the seconds until the next call; None:
        call it again after the next change. ``path`` opens streams over the local socket of a server on this host.
        """
        self.changed = Changes()
        """Notified of every change."""
        self._connection = connection
        self._method = method
        self._pending = pending
        self._before_waiting = before_waiting
        self._path = path
        self._stream: MessageStream | FrameStream | None = None
        self._sender: asyncio.Task[None] | None = None
        self._failure: Exception | None = None  # why a request could not be built
        self.is_closed = False
        """Whether `close` was called."""
        self._opened_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether there is a stream to the server."""
        return self._stream is not None

    def send_pending(self) -> None:
        """Send the requests that were added, as soon as the stream allows."""
        if self._pending.has_unsent:
            self.changed.notify()

    async def receive(self) -> tuple[R, Content]:
        """Wait for the reply to the oldest request. If there is no request yet, first wait for one.

        Only one task may call this. If it is canceled, the stream breaks, and the next call reconnects.
        """
        while True:
            stream = await self._opened()
            try:
                answer = await stream.receive()
            except BaseException as error:
                self._drop()
                failure, self._failure = self._failure, None
                if failure is not None and not self.is_closed:
                    raise failure from None
                if self.is_closed or not isinstance(error, Exception):
                    raise
                is_cut = await self._connection.is_cut(error, time.monotonic() - self._opened_at)
                pause_s = self._pending.failed(error, time.monotonic(), is_cut=is_cut)
            else:
                request = self._pending.answered()
                self.changed.notify()
                return request, answer
            await asyncio.sleep(pause_s)

    def close(self) -> None:
        """Close the stream. From now on `receive` raises `ClosedError`."""
        self.is_closed = True
        self._drop()

    async def _opened(self) -> MessageStream | FrameStream:
        """Return the stream, opening it once there is something to send."""
        await self._wait_for_requests()
        if self.is_closed:
            raise ClosedError("this stream is closed")
        if self._stream is None:
            self._stream = await self._open()
            self._opened_at = time.monotonic()
            self._sender = asyncio.create_task(self._send_all(self._stream), name="replay-sends")
        return self._stream

    async def _open(self) -> MessageStream | FrameStream:
        self._connection.check_usable()
        frames = await self._path.open(self._method)
        if frames is None:
            return self._connection.open_stream(self._method)
        if self.is_closed or self._connection.is_closed:
            frames.cancel()
            raise ClosedError("this stream is closed")
        self._connection.streams.add(frames)
        return frames

    async def _wait_for_requests(self) -> None:
        while not self.is_closed and not self._pending.requests:
            wait_s = self._before_waiting()
            if not self._pending.requests:
                await self.changed.wait(wait_s)

    async def _send_all(self, stream: MessageStream | FrameStream) -> None:
        """Send requests until the stream ends or is dropped, which cancels this task."""
        try:
            await self._send_pending(stream)
        except Exception as error:  # for example, a lack of memory: `receive` raises it
            self._failure = error
            stream.cancel()

    async def _send_pending(self, stream: MessageStream | FrameStream) -> None:
        while True:
            request = self._pending.next_to_send()
            if request is not None:
                if not await stream.send(b"".join(request.parts())):
                    return
                continue
            wait_s = self._before_waiting()
            if not self._pending.has_unsent:
                await self.changed.wait(wait_s)

    def _drop(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
        if self._stream is not None:
            self._stream.cancel()
        self._stream = self._sender = None
        self._pending.broken()
        self.changed.notify()
