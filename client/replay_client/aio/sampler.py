"""Draws batches and updates priorities over one stream; see `replay_client.sync.sampler`.

async with table.sampler(256, beta=0.4, prefetch=3) as sampler:
    async for batch in sampler:
        await sampler.update_priorities(batch, await learn(batch))
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from numpy.typing import ArrayLike
from replay_proto.v1 import replay_pb2

from replay_client._learning.answers import BatchReader
from replay_client._learning.handle import LoopSampler, SamplerHandle
from replay_client._learning.learning import DRAWS_WAIT_S, OF_DRAWS, Exchange, Learning
from replay_client._learning.one_caller import OneCaller
from replay_client._rows.columns import BatchOrKeys
from replay_client._transport.call import left_s
from replay_client._transport.long_waits import FOR_DRAWS, LongWait
from replay_client._transport.unclosed import FINISH_S, Lease
from replay_client.aio._connection import Connection
from replay_client.aio._frames import LocalPath
from replay_client.aio._stream import AnsweredStream
from replay_client.batch import Batch
from replay_client.draws import Prefetch
from replay_client.errors import ClosedError, DeadlineExceededError, ReplayError
from replay_client.results.description import TableDescription
from replay_client.sync.sampler import LOST_UPDATES

log = logging.getLogger(__name__)


class Sampler(SamplerHandle, LoopSampler):
    """An endless iterator over batches; see `replay_client.Sampler`. For use in one task at a time."""

    _connection: Connection

    def __init__(
        self,
        connection: Connection,
        table: TableDescription,
        draw: replay_pb2.Draw,
        reader: BatchReader,
        draw_over_wire: Callable[[replay_pb2.Draw], Awaitable[Batch]],
        *,
        path: LocalPath,
        prefetch: Prefetch,
        reconnect_timeout_s: float | None,
    ) -> None:
        """Created by `Table.sampler`; the first batch opens the stream.

        ``draw_over_wire`` draws a replacement for a batch if its rows were overwritten before they were copied.
        ``path`` has the shortcuts to the table.
        """
        super().__init__(
            connection, table, draw, reader, path.near, prefetch=prefetch, reconnect_timeout_s=reconnect_timeout_s
        )
        self._path = path
        self._one_caller = OneCaller("sampler")
        self._draw_over_wire = draw_over_wire
        self._connection = connection
        self._stream: AnsweredStream[Exchange] = AnsweredStream(connection, "Learn", self._learning.pending, path=path)
        self._exchanges = _Exchanges(connection, table.name, self._learning, self._stream)
        self._lease = Lease(self._exchanges)

    async def __anext__(self) -> Batch:
        """Return the oldest batch in flight, and request another one; see `replay_client.Sampler`."""
        with self._one_caller.turn():
            await self.request()
            batches, began_s = self._learning.batches, time.perf_counter()
            if not batches:
                explain = partial(self._connection.explain, self._table.name, FOR_DRAWS)
                with LongWait(f"a sampler of table {self._table.name!r}", explain):
                    while not batches:
                        await self._exchanges.receive(None)
            self._learning.prefetching.stepped(began_s, time.perf_counter())
            batch = batches[0]
            if isinstance(batch, replay_pb2.Draw):
                batch = await self._draw_over_wire(batch)
            batches.popleft()
            return batch

    async def request(self) -> None:
        """Send updates and a request for another batch; see `replay_client.Sampler.request`."""
        self._check_usable()
        await self._connection.reach()
        await self._path.renew()
        self._learning.ask()
        self._stream.send_pending()

    async def update_priorities(self, batch_or_keys: BatchOrKeys, priorities: ArrayLike) -> None:
        """Update priorities; the next request for a batch sends them. See `replay_client.Sampler.update_priorities`."""
        self._check_usable()
        self._learning.update(batch_or_keys, priorities)
        self._stream.send_pending()

    async def update(self, keys: ArrayLike, columns: Mapping[str, Any]) -> None:
        """Write mutable columns again; see `replay_client.Sampler.update`."""
        self._check_usable()
        self._learning.write(*self._checked_update(keys, columns))
        self._stream.send_pending()

    async def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all updates are acknowledged; see `replay_client.Sampler.flush`."""
        self._check_usable()
        explain = partial(self._connection.explain, self._table.name, FOR_DRAWS)
        with LongWait(f"a flush of a sampler of table {self._table.name!r}", explain):
            await self._exchanges.flush(self.deadline(timeout_s))

    async def close(self, *, timeout_s: float | None = None) -> None:
        """Flush and close. Idempotent; see `replay_client.Sampler.close`."""
        if self._is_closed or self._exchanges.is_finishing or self._connection.is_forked:
            return
        deadline = self.deadline(timeout_s)
        try:
            self._check_usable()
            await self._exchanges.flush_last(deadline)
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Close without a flush: unacknowledged updates may be lost."""
        self._is_closed = True
        if not self._exchanges.is_finishing:
            self._exchanges.close()

    def _check_usable(self) -> None:
        self._connection.check_not_forked()
        if self._is_closed or self._exchanges.is_finishing:
            raise ClosedError("this sampler is closed")


class _Exchanges:
    """The exchanges of a sampler with the server. Its task refers to them, and not to the sampler."""

    def __init__(
        self, connection: Connection, table: str, learning: Learning, stream: AnsweredStream[Exchange]
    ) -> None:
        self._connection = connection
        self._table = table
        self._learning = learning
        self._stream = stream
        self._is_closed = False
        self.is_finishing = False
        """Whether `finish` was called, as by a client that is closed while a task learns: the task must add no more."""
        self._receiver: asyncio.Task[None] | None = None
        self._finisher: asyncio.Task[None] | None = None
        connection.works.add(self)

    @property
    def title(self) -> str:
        """See `Work`."""
        return f"sampler of table {self._table!r} at {self._connection.address}"

    @property
    def is_done(self) -> bool:
        """See `Work`."""
        stream, learning = self._stream, self._learning
        return stream.is_closed or self._connection.is_forked or not (stream.is_open or learning.unacknowledged)

    def dropped(self) -> None:
        """See `Work`."""
        if not self._connection.soon(self._finish_soon):
            self._log_lost()

    async def finish(self, deadline: float) -> None:
        """See `LoopWork`."""
        self.is_finishing = True
        try:
            await self.flush_last(deadline)
        except ReplayError as error:
            log.debug("the updates of the %s were not acknowledged: %s", self.title, error)
        self._log_lost()
        self.close()

    async def flush(self, deadline: float) -> None:
        """See `Sampler.flush`."""
        self._learning.send_updates()
        self._stream.send_pending()
        while self._learning.unacknowledged:
            if time.monotonic() >= deadline:
                raise self._learning.too_late()
            try:
                await self.receive(left_s(deadline))
            except ReplayError as error:
                if error.reason not in OF_DRAWS:  # otherwise, its update is sent again, without a draw
                    raise

    async def flush_last(self, deadline: float) -> None:
        """Flush for the last time; see `replay_client.sync.sampler`."""
        try:
            await self.flush(min(deadline, time.monotonic() + DRAWS_WAIT_S))
        except DeadlineExceededError:
            if self._receiver is not None:
                self._receiver.cancel()  # which ends the stream
                await asyncio.wait((self._receiver,))
                self._receiver = None
            self._learning.drop_draws()
            await self.flush(deadline)

    def close(self) -> None:
        """Close without a flush."""
        self._is_closed = True
        self._stream.close()
        if self._receiver is not None:
            self._receiver.cancel()

    async def receive(self, limit_s: float | None) -> None:
        """Wait for the next reply, at most ``limit_s`` seconds. If canceled, the next call continues the wait."""
        if self._receiver is None:
            self._receiver = asyncio.create_task(self._process_reply(), name="replay-receives")
            self._receiver.add_done_callback(retrieve)
        receiver = self._receiver
        await asyncio.wait((receiver,), timeout=limit_s)
        if self._is_closed or receiver.cancelled():
            raise ClosedError("this sampler is closed")
        if receiver.done():
            if self._receiver is receiver:
                self._receiver = None
            receiver.result()

    async def _process_reply(self) -> None:
        self._learning.answered(*await self._stream.receive())

    def _finish_soon(self) -> None:
        self._finisher = asyncio.create_task(self.finish(time.monotonic() + FINISH_S), name="replay-finishes")

    def _log_lost(self) -> None:
        if self._learning.unacknowledged:
            log.warning(LOST_UPDATES, self._learning.unacknowledged, self._table)


def retrieve(task: asyncio.Task[Any]) -> None:
    """Mark a task's error as retrieved, so that asyncio does not log it.

    The sampler's next call raises the error, unless the sampler was closed.
    """
    if not task.cancelled():
        task.exception()
