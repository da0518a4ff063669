"""Delivers the blocks of a writer's outbox on an event loop; see `replay_client._writing.delivery`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from replay_client._transport.call import left_s
from replay_client._transport.long_waits import FOR_INSERTS, LongWait, too_late
from replay_client._transport.unclosed import FINISH_S
from replay_client._writing.writing import WriterOptions, Writing
from replay_client.aio._connection import Connection
from replay_client.aio._frames import LocalPath
from replay_client.aio._stream import AnsweredStream
from replay_client.errors import ClosedError, DeadlineExceededError
from replay_client.results.description import TableDescription


class Delivery:
    """Runs a background task that sends blocks, processes acknowledgements, and reconnects."""

    def __init__(
        self, connection: Connection, table: TableDescription, options: WriterOptions, path: LocalPath
    ) -> None:
        """Connect when the first block is sent. ``path`` has the shortcuts to the table."""
        self.writing = Writing(table, options, timeout_s=connection.timeout_s, wake=self._wake)
        self._outbox = self.writing.outbox
        self._connection = connection
        self._stream = AnsweredStream(
            connection, "Write", self.writing.pending, before_waiting=self._outbox.due_in_s, path=path
        )
        self._receiver: asyncio.Task[None] | None = None
        self._finisher: asyncio.Task[None] | None = None
        self._owes_turn = False
        self._is_finishing = False
        connection.works.add(self)

    @property
    def title(self) -> str:
        """See `Work`."""
        return f"writer of table {self._outbox.name!r} at {self._connection.address}"

    @property
    def is_done(self) -> bool:
        """See `Work`."""
        return self._receiver is None or self._outbox.is_closed or self._connection.is_forked

    def dropped(self) -> None:
        """See `Work`."""
        if not self._connection.soon(self._finish_soon):
            self._outbox.log_lost()

    async def finish(self, deadline: float) -> None:
        """See `LoopWork`."""
        self._is_finishing = True  # otherwise, another task could append rows until the deadline
        outbox = self._outbox
        outbox.resume()
        while outbox.in_flight and not outbox.has_failed and not outbox.is_closed:
            outbox.hand_over()
            if (left := left_s(deadline)) == 0:
                break
            await self._stream.changed.wait(left)
        await self.close()
        outbox.log_lost()

    async def ready(self) -> None:
        """Connect if necessary, and check for errors, before rows are added.

        If a block was begun or sent since the last call, let other tasks run first.
        """
        await self.connected()
        if self._is_finishing:
            raise ClosedError("this writer is closed")

    async def connected(self) -> None:
        """Connect if necessary, and check for errors; raise like `ready`."""
        await self._connection.reach()
        if self._owes_turn:
            self._owes_turn = False
            await asyncio.sleep(0)
        self._outbox.check()

    async def send(self, deadline: float) -> None:
        """Send the current block once few enough blocks are in flight; raise like `wait_for_all`."""
        if not self._outbox.hand_over():
            await self.wait_until(self._outbox.hand_over, deadline)

    async def wait_for_all(self, deadline: float) -> None:
        """Wait until all blocks sent so far are acknowledged; see `replay_client._writing.delivery`."""
        last = self._outbox.last_sequence
        if not self._outbox.has_acknowledged(last):
            await self.wait_until(lambda: self._outbox.has_acknowledged(last), deadline)

    async def wait_until(self, holds: Callable[[], bool], deadline: float = math.inf) -> None:
        """Wait until this holds, and say so in the log if it takes long; raise like `wait_for_all`."""
        explain = partial(self._connection.explain, self._outbox.name, FOR_INSERTS)
        with LongWait(f"a {self.title} with {self._outbox.in_flight:,} unacknowledged rows", explain):
            while not holds():
                await self.wait(deadline)

    async def explained(self, refusal: DeadlineExceededError, waited_s: float) -> DeadlineExceededError:
        """Add to the error of a time limit what the rows wait for."""
        found = await self._connection.first_wait(self._outbox.name, FOR_INSERTS)
        return too_late(refusal, self._outbox.name, waited_s, found)

    async def wait(self, deadline: float) -> None:
        """Wait for a change; raise like `wait_for_all`."""
        left = left_s(deadline)
        if left == 0:
            raise self._outbox.too_late()
        await self._stream.changed.wait(left)
        self._outbox.check()

    async def close(self) -> None:
        """Stop sending, and end the background task."""
        self._outbox.close()
        self._stream.close()
        if self._receiver is not None:
            self._receiver.cancel()
            await asyncio.wait((self._receiver,))

    def _wake(self) -> None:
        """Wake up all tasks, and start the background task once there are rows to deliver."""
        self._owes_turn = True
        if self._receiver is None and self._outbox.block.count:
            self._receiver = asyncio.create_task(self._receive_all(), name="replay-writer")
        self._stream.changed.notify()

    async def _receive_all(self) -> None:
        """Process acknowledgements until the writer is closed or fails."""
        outbox = self._outbox
        try:
            while not outbox.has_failed:
                await self._receive()
                while outbox.is_paused and not outbox.is_closed:
                    await self._stream.changed.wait()
        except asyncio.CancelledError:
            if not outbox.is_closed:
                await self._end_with_loop()
            raise

    async def _receive(self) -> None:
        try:
            self._outbox.answered(*await self._stream.receive())
        except Exception as error:
            self._outbox.failed(error)
        self._stream.changed.notify()

    async def _end_with_loop(self) -> None:
        """Deliver the rows of a writer that is not closed, because the loop is about to end and cancels all tasks."""
        outbox = self._outbox
        outbox.resume()
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                while outbox.in_flight and not outbox.has_failed and not outbox.is_paused:
                    outbox.hand_over()
                    await self._receive()
        outbox.close()
        self._stream.close()
        outbox.log_lost()

    def _finish_soon(self) -> None:
        if not self.is_done:
            self._finisher = asyncio.create_task(self.finish(time.monotonic() + FINISH_S), name="replay-finishes")
