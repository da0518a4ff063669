"""The channel to a server on an event loop; see `replay_client._transport.connection`."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeVar

from grpc import aio
from replay_proto.channels import open_loop_channel
from replay_proto.v1 import replay_pb2

from replay_client._transport.address import listens
from replay_client._transport.attempts import ANSWERING_S, CHECK_AGAIN_S, CHECKS, Attempts, FirstContact
from replay_client._transport.call import Call, Operation, left_s, limited, run_async
from replay_client._transport.connection import (
    CHANNEL_OPTIONS,
    HEALTH_CHECK,
    ConnectionBase,
    SessionOptions,
    StreamMethod,
    cut_off,
    may_be_cut,
    rpc_path,
)
from replay_client._transport.long_waits import ASK_S, LongWait, explained, first_wait, waited_call
from replay_client._transport.unclosed import FINISH_S, Work
from replay_client.aio._frames import FrameStream, Turns
from replay_client.errors import ClosedError, DeadlineExceededError, ReplayError, ServerUnavailableError
from replay_client.security import Token

T = TypeVar("T")


class LoopWork(Work, Protocol):
    """Work of tasks."""

    async def finish(self, deadline: float) -> None:
        """Deliver what is left until the deadline, close, and log what was lost."""
        ...


class MessageStream:
    """A bidirectional gRPC stream. If `receive` or `send` is canceled, so is the stream."""

    def __init__(self, connection: Connection, call: aio.StreamStreamCall[bytes, bytes]) -> None:
        self._connection = connection
        self._call = call

    async def send(self, message: bytes) -> bool:
        """Send a message. Return False if the stream has ended; `receive` raises the reason."""
        try:
            await self._call.write(message)
        except (aio.AioRpcError, asyncio.InvalidStateError):
            return False
        return True

    async def receive(self) -> bytes:
        """Wait for the next reply; raise `ReplayError` when the stream has ended."""
        answer = await self._connection.outcome(self._call.read())
        if isinstance(answer, bytes):
            return answer
        raise ServerUnavailableError(f"the replay server at {self._connection.address} ended the stream")

    def cancel(self) -> None:
        """Cancel the stream."""
        self._call.cancel()


class Connection(ConnectionBase):
    """A channel to one server. It is opened on first use, and belongs to the event loop that is running then."""

    def __init__(self, options: SessionOptions, token: Token | None = None) -> None:
        super().__init__(options, token)
        self._channel: aio.Channel | None = None
        self._earlier: list[aio.Channel] = []  # with older certificates: their calls and streams run on
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns = Turns()
        self._contact = asyncio.Lock()
        self._unary: dict[str, aio.UnaryUnaryMultiCallable[bytes, bytes]] = {}
        self.works: weakref.WeakSet[LoopWork] = weakref.WeakSet()
        """Work in the background over this connection, which is finished before the client is closed."""
        self.streams: weakref.WeakSet[MessageStream | FrameStream] = weakref.WeakSet()
        """Open streams, which `close` cancels."""

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation."""
        await self._turns.take()
        return await run_async(operation, self.call)

    async def ask(self, operation: Operation[T], *, timeout_s: float) -> T:
        """Run an operation whose answer is optional; see `replay_client._transport.connection.Connection.ask`."""

        async def call_once(call: Call) -> bytes:
            self.check_usable()
            limit_s = sum(limited(replace(call, timeout_s=timeout_s, margin_s=0.0), timeout_s))
            return await self._attempt(call, time.monotonic() + limit_s)

        return await run_async(operation, call_once)

    async def is_cut(self, error: Exception, lasted_s: float) -> bool:
        """Whether a call or stream was cut off; see `replay_client._transport.connection.Connection.is_cut`."""
        if not may_be_cut(error, lasted_s) or self.is_closed:
            return False
        check: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._opened().unary_unary(HEALTH_CHECK)
        for _ in range(CHECKS):
            with suppress(ReplayError):
                await self.outcome(check(b"", timeout=ANSWERING_S, wait_for_ready=False))
                return True
            await asyncio.sleep(CHECK_AGAIN_S)
        return False

    async def first_wait(self, table: str, kinds: Collection[str]) -> replay_pb2.WaitStats | ReplayError | None:
        """Ask what inserts or draws of a table wait for; see `replay_client._transport.connection`."""
        try:
            return await self.ask(first_wait(table, kinds), timeout_s=ASK_S)
        except (ServerUnavailableError, DeadlineExceededError) as error:
            return error
        except ReplayError:  # the token may write, but not see figures
            return None

    def explain(self, table: str, kinds: Collection[str], waited_s: float) -> str:
        """Say what a call waits for. Runs in the thread of `LongWait`, which waits for the event loop."""
        loop = self._loop
        if loop is None or not kinds:
            return f"waited {waited_s:g} s for the answer; the call ends at its time limit"
        asking = asyncio.run_coroutine_threadsafe(self.first_wait(table, kinds), loop)
        try:
            return explained(table, waited_s, asking.result(2 * ASK_S))
        except TimeoutError:
            asking.cancel()
            return f"waited {waited_s:g} s; the event loop is busy, so the server's answers are not processed"

    async def call(self, call: Call) -> bytes:
        """Make a call and wait for the reply."""
        with LongWait(
            f"the call {call.method} to {self.address}", lambda waited_s: self.explain(*waited_call(call), waited_s)
        ):
            return await self._call(call)

    async def _call(self, call: Call) -> bytes:
        limit_s, margin_s = limited(call, self.timeout_s)
        await self.reach()
        deadline = time.monotonic() + limit_s
        attempts = Attempts(deadline)
        began = time.monotonic()
        while True:
            try:
                return await self._attempt(call, deadline + margin_s)
            except ReplayError as error:
                if not call.repeat:
                    raise
                try:
                    pause_s = attempts.failed(error, time.monotonic())
                except ServerUnavailableError as away:
                    if await self.is_cut(away, time.monotonic() - began):
                        raise cut_off(away) from None
                    raise
            await asyncio.sleep(pause_s)

    async def reach(self) -> None:
        """Wait for the first contact with the server; later calls return immediately.

        Raises:
            RuntimeError: the running event loop is not that of the first call.
        """
        self.check_usable()
        self._check_loop()
        if self._was_reached:
            return
        async with self._contact:
            contact = self._first_contact()
            while not self._was_reached and (refusal := await self._knock(contact)) is not None:
                pause_s = contact.pause_s(refusal, time.monotonic())
                if pause_s is None:
                    is_used = await asyncio.to_thread(listens, self.address)
                    raise self.access.explained(contact.given_up(refusal, listens=is_used))
                await asyncio.sleep(pause_s)
            self._was_reached = True

    def open_stream(self, method: StreamMethod) -> MessageStream:
        """Open a bidirectional stream; see `MessageStream`."""
        self.check_usable()
        multi: aio.StreamStreamMultiCallable[bytes, bytes] = self._opened().stream_stream(rpc_path(method))
        stream = MessageStream(self, multi(metadata=aio.Metadata(*self._metadata())))
        self.streams.add(stream)
        return stream

    async def close(self) -> None:
        """Close the channel, which ends running calls and streams.

        Writers and samplers that nobody closed get `FINISH_S` seconds to deliver what they have.
        """
        deadline = time.monotonic() + FINISH_S
        for work in list(self.works):
            if not work.is_done:
                await work.finish(deadline)
        self.is_closed = True
        for stream in list(self.streams):
            stream.cancel()
        for channel in (*self._earlier, *([] if self._channel is None else [self._channel])):
            await channel.close()

    def soon(self, work: Callable[[], object]) -> bool:
        """Have the connection's event loop call a function; return False if the loop has ended."""
        try:
            if self._loop is None:
                return False
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:  # the loop is closed
            return False
        return True

    async def outcome(self, call: Awaitable[T]) -> T:
        """Wait for a call to gRPC, and convert its errors."""
        try:
            return await call
        except aio.AioRpcError as error:
            raise self.failure(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Another task canceled gRPC's call.
            raise ClosedError("the connection was closed during the call") from None
        except (aio.UsageError, aio.InternalError):  # raised by gRPC after the channel was closed
            self.check_usable()
            raise

    async def _knock(self, contact: FirstContact) -> ServerUnavailableError | None:
        """Check whether a server answers; return an error if none does."""
        check: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._opened().unary_unary(HEALTH_CHECK)
        try:
            await self.outcome(check(b"", timeout=contact.limit_s(time.monotonic()), wait_for_ready=False))
        except ReplayError as error:
            self.check_usable()
            return contact.refusal(error.code, error.metadata.get("detail", ""))
        return None

    async def _attempt(self, call: Call, deadline: float) -> bytes:
        channel = self._opened()
        unary = self._unary.get(call.method)
        if unary is None:
            unary = self._unary[call.method] = channel.unary_unary(rpc_path(call.method))
        return await self.outcome(
            unary(
                call.request,
                timeout=left_s(deadline),
                metadata=aio.Metadata(*self._metadata()),
                wait_for_ready=not call.repeat,
            )
        )

    def _opened(self) -> aio.Channel:
        """Return the channel. It is opened on first use, and again if the certificates were renewed."""
        if self._channel is not None and self.access.is_renewed():
            self._earlier.append(self._channel)
            self._channel = None
            self._unary.clear()
        if self._channel is None:
            self._channel = open_loop_channel(self.address, *self.access.channel_security(CHANNEL_OPTIONS))
        return self._channel

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if loop is not self._loop:
            raise RuntimeError("this client belongs to another event loop; create one client per loop")
