"""Streams over the local socket of a server on this host; see `replay_client._transport.local_calls`."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from functools import partial
from typing import Final, Literal

from google.rpc import status_pb2
from replay_proto.frames import Content, FrameError, FrameKind, FrameParser, frame_head
from replay_proto.tracing import context_metadata

from replay_client._transport.data_path import Renewal, Shortcuts, renewal_s
from replay_client._transport.frame_stream import LONGEST_BYTES, SILENCE_S
from replay_client._transport.local_calls import HELLO_TIMEOUT_S, RETRY_S, SEND_BYTES, FrameMethod, LocalAddress
from replay_client.errors import ReplayError, ServerUnavailableError, from_status
from replay_client.results.description import TableDescription


class Changes:
    """Wakes up all tasks that wait for a change of some state. A canceled wait has no effect."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake up all waiting tasks."""
        self._event.set()
        self._event.clear()

    async def wait(self, limit_s: float | None = None) -> None:
        """Wait for the next `notify`, or for ``limit_s`` seconds; None: no limit."""
        if limit_s is None:
            await self._event.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._event.wait()


class Turns:
    """Lets one task per iteration of the event loop begin its work, so that many simultaneous calls do not block it."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def take(self) -> None:
        """Wait for a turn. In each iteration of the loop, only one of the waiting tasks gets one."""
        async with self._lock:
            await asyncio.sleep(0)


_BROKEN: Final = "the connection to the server broke"


class FrameStream(asyncio.BufferedProtocol):
    """A stream with the methods of `MessageStream`."""

    def __init__(self) -> None:
        """Do not connect yet."""
        self.is_alive: Callable[[], Awaitable[bool]] | None = None
        """Tells whether the server answers on another connection. Called when a reply is late."""
        self._sent = self._received = 0
        self._parser = FrameParser(LONGEST_BYTES)
        self._frames: deque[tuple[FrameKind, Content]] = deque()
        self._changed = Changes()
        self._transport: asyncio.Transport | None = None
        self._is_writable = True
        self._is_ended = False

    async def send(self, message: bytes) -> bool:
        """Send a message once the server has read most of the earlier ones. Return False if the stream has ended."""
        while not self._is_writable and not self._is_ended:
            await self._changed.wait()
        if self._is_ended or self._transport is None:
            return False
        self._sent += 1
        self._transport.writelines((frame_head(len(message)), message))
        return True

    async def receive(self) -> Content:
        """Wait for the next reply; raise the refusal, or `ServerUnavailableError` when the stream has ended."""
        while not self._frames:
            if self._is_ended:
                raise ServerUnavailableError(_BROKEN)
            try:
                async with asyncio.timeout(SILENCE_S):
                    await self._changed.wait()
            except TimeoutError:
                if self.is_alive is not None and self._sent > self._received and not await self.is_alive():
                    self.cancel()
                    error = ServerUnavailableError("the server no longer answers")
                    error.silent_s = SILENCE_S
                    raise error from None
        kind, content = self._frames.popleft()
        self._received += 1
        if kind is FrameKind.STATUS:
            raise from_status(status_pb2.Status.FromString(bytes(content)))
        return content

    def cancel(self) -> None:
        """Close the connection."""
        self._is_ended = True
        self._changed.notify()
        if self._transport is not None:
            self._transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Use the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        connected: socket.socket = transport.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return memory to receive into."""
        return self._parser.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Take the frames that have arrived."""
        self._parser.received(nbytes)
        try:
            while (taken := self._parser.take()) is not None:
                self._frames.append(taken)
        except FrameError:
            self.cancel()
        self._changed.notify()

    def pause_writing(self) -> None:
        """Stop sending, because the server does not read."""
        self._is_writable = False

    def resume_writing(self) -> None:
        """Continue sending."""
        self._is_writable = True
        self._changed.notify()

    def connection_lost(self, error: Exception | None) -> None:
        """End the stream."""
        self._is_ended = True
        self._changed.notify()


class LocalPath(Shortcuts):
    """Shortcuts to one table: mapped rows, and streams over the local socket."""

    def __init__(
        self,
        table: TableDescription,
        authorization: Callable[[], str],
        *,
        describe: Callable[[], Awaitable[TableDescription]] | None,
    ) -> None:
        """See `Shortcuts`. ``describe`` asks the server for the table's current description; None: use gRPC only."""
        self._describe = describe
        self._pause_until_s = 0.0
        self._renewing = asyncio.Lock()
        super().__init__(table, authorization, is_wanted=describe is not None)

    async def renew(self, limit_s: float | None = None) -> None:
        """Find out which server is there, if that is in doubt; see `replay_client._transport.data_path.DataPath`."""
        if not self._has_to_look():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(renewal_s(limit_s)), self._renewing:
                if self._has_to_look():
                    await self._take(self._renewal())

    async def _take(self, steps: Renewal) -> None:
        with closing(steps), suppress(StopIteration):
            address = next(steps)
            while True:
                address = steps.send(await self._current() if address is None else await _is_accepted_at(address))

    async def open(self, method: FrameMethod) -> FrameStream | None:
        """Open a stream. Return None if the server refuses or does not answer in time; then use gRPC."""
        self.doubt_if_replaced()
        await self.renew()
        address = self.address
        if address is None or time.monotonic() < self._pause_until_s:
            return None
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                stream = await _greeted(address, method)
            stream.is_alive = partial(_is_alive, address, method)
            return stream
        except (FileNotFoundError, ConnectionRefusedError):
            return None  # another attempt is nearly free, and finds a restarted server immediately
        except (OSError, ReplayError):
            self._pause_until_s = time.monotonic() + RETRY_S
            return None

    async def _current(self) -> TableDescription | None:
        assert self._describe is not None
        try:
            return await self._describe()
        except ReplayError:
            return None


async def _greeted(address: LocalAddress, method: FrameMethod | Literal[""]) -> FrameStream:
    """Open a connection, send the hello, and wait until the server accepts it."""
    stream = FrameStream()
    try:
        with address.short_path() as path:
            await asyncio.get_running_loop().create_unix_connection(lambda: stream, path)
        await stream.send(address.hello(method, context_metadata()))
        address.check_welcome(await stream.receive())
    except BaseException:
        stream.cancel()
        raise
    return stream


async def _is_accepted_at(address: LocalAddress) -> bool:
    """Whether the server that the address is meant for listens there."""
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            (await _greeted(address, "")).cancel()
    except (OSError, ReplayError):
        return False
    return True


async def _is_alive(address: LocalAddress, method: FrameMethod) -> bool:
    """Whether the server answers the hello of another connection, even if it refuses."""
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            (await _greeted(address, method)).cancel()
    except ReplayError as error:  # some of them are OSErrors, too
        return not isinstance(error, ServerUnavailableError)
    except OSError:
        return False
    return True
