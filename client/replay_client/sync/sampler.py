"""Draws batches and updates priorities over one stream, for learners.

    with table.sampler(256, beta=0.4, prefetch=3) as sampler:
        for batch in sampler:
            td_errors = learn(batch)
            sampler.update_priorities(batch, td_errors)
            sampler.beta = schedule(step)

Each `next()` sends a request and all earlier updates, and returns the oldest batch in flight. With ``prefetch=p``, each
batch is requested ``p - 1`` steps in advance, so it misses the last ``p - 1`` updates. In exchange, the learner does
not wait for the network. With ``prefetch=1``, every batch reflects all earlier updates. With a ``prefetch`` of 8 or
more, one message requests several batches and carries several updates; a batch still misses at most ``p - 1`` updates.
With ``prefetch="auto"``, the sampler finds the smallest ``p`` that keeps the learner from waiting, from 2 to 16.
A rate limiter counts batches in flight as drawn, even if they are never used. In a queue, their rows are already gone.

When the connection breaks, the sampler reconnects and repeats unanswered requests. Repeated updates set the same
priorities again, and the batches are drawn again; a queue delivers the same rows again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_proto.framing import Array
from replay_proto.v1 import replay_pb2

from replay_client._learning.answers import BatchReader
from replay_client._learning.handle import SamplerHandle, ThreadSampler
from replay_client._learning.learning import DRAWS_WAIT_S, OF_DRAWS, Exchange, Learning
from replay_client._learning.one_caller import OneCaller
from replay_client._rows.columns import BatchOrKeys
from replay_client._transport.answered_stream import AnsweredStream
from replay_client._transport.connection import Connection
from replay_client._transport.data_path import DataPath
from replay_client._transport.long_waits import FOR_DRAWS, LongWait, explained
from replay_client._transport.unclosed import Lease, finish_at_exit, finish_in_thread
from replay_client.batch import Batch
from replay_client.draws import Prefetch
from replay_client.errors import ClosedError, ConcurrentUseError, DeadlineExceededError, ReplayError
from replay_client.results.description import TableDescription

log = logging.getLogger(__name__)

LOST_UPDATES: Final = (
    "%d messages of updates of table %r may be lost: their sampler was not closed, and they were not acknowledged "
    "in time"
)
"""Logged when an unclosed sampler ends."""


class Sampler(SamplerHandle, ThreadSampler):
    """An endless iterator over batches. For use in one thread."""

    _connection: Connection

    def __init__(
        self,
        connection: Connection,
        table: TableDescription,
        draw: replay_pb2.Draw,
        reader: BatchReader,
        draw_over_wire: Callable[[replay_pb2.Draw], Batch],
        *,
        path: DataPath,
        prefetch: Prefetch,
        reconnect_timeout_s: float | None,
    ) -> None:
        """Created by `Table.sampler`; the first `next()` opens the stream.

        ``draw_over_wire`` draws a replacement for a batch if its rows were overwritten before they were copied.
        ``path`` has the shortcuts to the table.
        """
        path.renew()
        super().__init__(
            connection, table, draw, reader, path.near, prefetch=prefetch, reconnect_timeout_s=reconnect_timeout_s
        )
        self._one_caller = OneCaller("sampler")
        self._draw_over_wire = draw_over_wire
        self._connection = connection

        def explain(waited_s: float) -> str:  # must not refer to the sampler, which ends when nobody does
            return explained(table.name, waited_s, connection.first_wait(table.name, FOR_DRAWS))

        self._explain = explain
        self._long_wait = LongWait(f"a sampler of table {table.name!r}", explain)
        self._stream: AnsweredStream[Exchange] = AnsweredStream(connection, "Learn", self._learning.pending, path=path)
        self._lease = Lease(_Exchanges(connection, table.name, self._learning, self._stream, self._one_caller))

    def __next__(self) -> Batch:
        """Send updates and a request for another batch, and return the oldest batch in flight.

        Raises:
            TableReplacedError: the table was dropped, and another one has its name.
            TableEmptyError: the table has no rows, and `timeout_s` is 0.
            LimitedError: the rate limiter or queue does not allow a batch, and `timeout_s` is 0.
            DeadlineExceededError: the table stayed empty, or its limiter or queue allowed no batch, for `timeout_s`
                seconds.
            TableResetError: the table was reset during the wait. Calling again continues.
            ServerUnavailableError: the server was unreachable for `reconnect_timeout_s`. Calling again retries.
            ConcurrentUseError: another thread is in a call to this sampler.
            ReplayError: the server refused the request for another reason.
        """
        with self._one_caller.turn():
            self._request()
            batches, began_s = self._learning.batches, time.perf_counter()
            if not batches:
                with self._long_wait:
                    while not batches:
                        self._receive(math.inf)
            self._learning.prefetching.stepped(began_s, time.perf_counter())
            batch = batches[0]
            if isinstance(batch, replay_pb2.Draw):
                batch = self._draw_over_wire(batch)
            batches.popleft()
            return batch

    def request(self) -> None:
        """Send updates and a request for another batch, as `next()` does, but do not wait for the batch."""
        with self._one_caller.turn():
            self._request()

    def update_priorities(self, batch_or_keys: BatchOrKeys, priorities: ArrayLike) -> None:
        """Update priorities as `Table.update_priorities` does; the next call of `next()` or `flush` sends them."""
        with self._one_caller.turn():
            self._check_usable()
            self._learning.update(batch_or_keys, priorities)
            self._stream.send_pending()

    def update(self, keys: ArrayLike, columns: Mapping[str, Any]) -> None:
        """Write mutable columns again, as `Table.update` does; sent at once, without waiting for the reply.

        Draws that are requested later return the new values. `flush` waits for the acknowledgement, and `updated` and
        `stale` count these rows, too. Arguments and errors are those of `Table.update`, and errors of `next()`.
        """
        self._write(*self._checked_update(keys, columns))

    def _write(self, keys: NDArray[np.int64], columns: Mapping[str, Array]) -> None:
        """Send an update that was checked."""
        with self._one_caller.turn():
            self._check_usable()
            self._learning.write(keys, columns)
            self._stream.send_pending()

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all updates are acknowledged. Batches that arrive meanwhile are kept; refused draws are ignored.

        Args:
            timeout_s: time limit in seconds. None: the client's default; 0: do not wait; `math.inf`: as long as the
                server is reachable.

        Raises:
            DeadlineExceededError: timed out. The updates are kept and sent again later.
            ReplayError: as for `next()`.
        """
        with self._one_caller.turn():
            self._check_usable()
            deadline = self.deadline(timeout_s)
            with LongWait(f"a flush of a sampler of table {self._table.name!r}", self._explain):
                _flush(self._learning, self._stream, deadline)

    def close(self, *, timeout_s: float | None = None) -> None:
        """Flush and close. Idempotent; does nothing in a forked child. If another thread is in a call, that call ends.

        Raises:
            ConcurrentUseError: another thread is in a call, and updates are unacknowledged.
            ReplayError: as for `flush`; the sampler is closed in any case.
        """
        if self._connection.is_forked or self._is_closed:
            return
        try:
            self._flush_last(timeout_s)
        except ConcurrentUseError:
            if self.unacknowledged:
                raise
        finally:
            self.cancel()

    def _flush_last(self, timeout_s: float | None) -> None:
        deadline = self.deadline(timeout_s)
        with self._one_caller.turn(), LongWait(f"a flush of a sampler of table {self._table.name!r}", self._explain):
            _flush_last(self._learning, self._stream, deadline)

    def cancel(self, *, is_waited_for: bool = False) -> None:
        """Close without a flush: unacknowledged updates may be lost.

        Args:
            is_waited_for: whether another thread may be in `next()`, which then raises `ClosedError`.
        """
        if not self._connection.is_forked:
            self._is_closed = True
            self._stream.close(is_received=is_waited_for or self._one_caller.is_busy)

    def _request(self) -> None:
        self._check_usable()
        self._learning.ask()
        self._stream.send_pending()

    def _receive(self, deadline: float) -> None:
        """Process the next reply."""
        self._learning.answered(*self._stream.receive(deadline))

    def _check_usable(self) -> None:
        self._connection.check_not_forked()
        if self._is_closed:
            raise ClosedError("this sampler is closed")


class _Exchanges:
    """The exchanges of a sampler with the server, which are finished if nobody closes the sampler; see `Work`."""

    def __init__(
        self,
        connection: Connection,
        table: str,
        learning: Learning,
        stream: AnsweredStream[Exchange],
        one_caller: OneCaller,
    ) -> None:
        self._connection = connection
        self._table = table
        self._learning = learning
        self._stream = stream
        self._one_caller = one_caller
        connection.works.add(self)
        finish_at_exit(self)

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
        finish_in_thread(self)

    def deliver(self, deadline: float) -> None:
        """Deliver the updates, unless another thread still uses the sampler; see `Work`."""
        try:
            with self._one_caller.turn():
                _flush_last(self._learning, self._stream, deadline)
        except ReplayError as error:
            log.debug("the updates of the %s were not acknowledged: %s", self.title, error)

    def finish(self, deadline: float) -> None:
        """See `Work`."""
        if self.is_done:
            return
        self.deliver(deadline)
        if self._learning.unacknowledged:
            log.warning(LOST_UPDATES, self._learning.unacknowledged, self._table)
        self._stream.close(is_received=self._one_caller.is_busy)


def _flush(learning: Learning, stream: AnsweredStream[Exchange], deadline: float) -> None:
    """See `Sampler.flush`."""
    learning.send_updates()
    stream.send_pending()
    while learning.unacknowledged:
        if time.monotonic() >= deadline:
            raise learning.too_late()
        try:
            learning.answered(*stream.receive(deadline))
        except ReplayError as error:
            if error.reason in OF_DRAWS:  # its update is sent again, without a draw
                continue
            if isinstance(error, DeadlineExceededError):
                raise learning.too_late() from None
            raise


def _flush_last(learning: Learning, stream: AnsweredStream[Exchange], deadline: float) -> None:
    """Flush for the last time. If updates wait behind draws, which wait for rows or samples, drop the draws."""
    try:
        _flush(learning, stream, min(deadline, time.monotonic() + DRAWS_WAIT_S))
    except DeadlineExceededError:
        stream.restart()
        learning.drop_draws()
        _flush(learning, stream, deadline)
