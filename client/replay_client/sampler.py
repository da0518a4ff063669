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
A rate limiter counts batches in flight as drawn, even if they are never used. In a queue, their rows are already gone.

When the connection breaks, the sampler reconnects and repeats unanswered requests. Repeated updates set the same
priorities again, and the batches are drawn anew.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from numpy.typing import ArrayLike
from replay_proto.v1 import replay_pb2

from replay_client._answers import BatchReader
from replay_client._rows.checks import MOST_KEYS_AT_ONCE, checked_keys, checked_priorities
from replay_client._rows.columns import BatchOrKeys
from replay_client._transport.answered_stream import AnsweredStream, Request
from replay_client._transport.connection import Connection
from replay_client._transport.frame_stream import FrameStream
from replay_client.batch import Batch
from replay_client.draws import checked_beta, checked_count
from replay_client.errors import ClosedError, DeadlineExceededError
from replay_client.results.description import TableDescription

_MESSAGES_IN_FLIGHT: Final = 4
"""Desired number of messages in flight: with a larger prefetch, one message requests several batches."""
_MOST_TOGETHER: Final = 64
"""Maximum batches per message: the server handles no other call while it draws them."""
UPDATES_KEPT: Final = MOST_KEYS_AT_ONCE
"""Maximum rows of updates that wait for the next request; with more, they are sent immediately."""


@dataclass(kw_only=True)
class _Exchange(Request):
    """A learner's message and the expected reply."""

    message: bytes
    draw: replay_pb2.Draw
    has_update: bool = False
    batches: int = 0

    def parts(self) -> Sequence[bytes]:
        """The learner's message."""
        return (self.message,)


class Sampler:
    """An endless iterator over batches. For use in one thread."""

    def __init__(
        self,
        connection: Connection,
        table: TableDescription,
        draw: replay_pb2.Draw,
        reader: BatchReader,
        draw_over_wire: Callable[[replay_pb2.Draw], Batch],
        *,
        open_around: Callable[[], FrameStream | None],
        prefetch: int,
        reconnect_timeout_s: float | None,
    ) -> None:
        """Created by `Table.sampler`; the first `next()` opens the stream.

        ``draw_over_wire`` draws a replacement for a batch if its rows were overwritten before they were copied.
        ``open_around`` opens a stream that bypasses gRPC, if available.
        """
        self.prefetch = prefetch
        self.updated = 0
        """Number of rows updated so far, according to the server's replies."""
        self.stale = 0
        """Number of stale keys so far, according to the server's replies."""
        self._draw = draw
        self._reader = reader
        self._draw_over_wire = draw_over_wire
        self._connection = connection
        self._table = table
        self._stream: AnsweredStream[_Exchange] = AnsweredStream(
            connection,
            "Learn",
            reconnect_timeout_s=reconnect_timeout_s,
            keep_refused=False,
            open_around=open_around,
        )
        self._batches: deque[Batch] = deque()  # received while waiting for something else
        self._keys: list[bytes] = []
        self._priorities: list[bytes] = []
        self._keys_kept = 0
        self._is_closed = False

    @property
    def beta(self) -> float:
        """Exponent of the weights in future requests; `Batch.beta` is the exponent used for a batch."""
        return self._draw.beta

    @beta.setter
    def beta(self, beta: float) -> None:
        draw = replay_pb2.Draw()
        draw.CopyFrom(self._draw)  # batches in flight refer to the previous one
        draw.beta = checked_beta(beta)
        self._draw = draw

    @property
    def prefetch(self) -> int:
        """Batches in flight while `next()` waits, at least 1; can be changed."""
        return self._prefetch

    @prefetch.setter
    def prefetch(self, prefetch: int) -> None:
        self._prefetch = checked_count("prefetch", prefetch)

    @property
    def in_flight(self) -> int:
        """Batches requested but not yet returned."""
        pending = tuple(self._stream.pending)  # another thread may be at work
        return len(self._batches) + sum(exchange.batches for exchange in pending)

    @property
    def unacknowledged(self) -> int:
        """Number of messages with unacknowledged updates; unsent updates count as one message."""
        with self._stream.changed:
            return bool(self._keys) + sum(exchange.has_update for exchange in self._stream.pending)

    def __repr__(self) -> str:
        draw = f"batch_size={self._draw.batch_size}, beta={self.beta}"
        return f"<Sampler of table {self._table.name!r} at {self._connection.address}: {draw}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a sampler cannot be pickled or copied; send the table and create a sampler there")

    def __iter__(self) -> Sampler:
        return self

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
            ReplayError: the server refused the request for another reason.
        """
        self._check_usable()
        most = min(_MOST_TOGETHER, MOST_KEYS_AT_ONCE // self._draw.batch_size)
        together = max(1, min(most, self.prefetch // _MESSAGES_IN_FLIGHT))
        while (missing := self.prefetch - self.in_flight) >= together:
            self._send(min(missing, together))
        if self._keys and together == 1:  # only after an error while batches were in flight
            self._send(0)
        while not self._batches:
            self._receive(math.inf)
        return self._batches.popleft()

    def update_priorities(self, batch_or_keys: BatchOrKeys, priorities: ArrayLike) -> None:
        """Update priorities. The next call of `next()` or `flush` sends them.

        Args:
            batch_or_keys: a batch, or keys int64[n]. For duplicate keys, the last priority counts.
            priorities: finite absolute TD errors float64[n], as an array or a tensor. If a device is still computing
                the tensor, the call waits.

        Raises:
            InvalidArgumentError: the keys or the priorities are invalid.
        """
        self._check_usable()
        checked = checked_keys(batch_or_keys)
        values = checked_priorities(priorities, len(checked))
        for first in range(0, len(checked), UPDATES_KEPT):
            part = slice(first, first + UPDATES_KEPT)
            if self._keys_kept + len(checked[part]) > UPDATES_KEPT:
                self._send(0)
            self._priorities.append(values[part].tobytes())
            self._keys.append(checked[part].tobytes())
            self._keys_kept += len(checked[part])
        if self._keys_kept >= UPDATES_KEPT:
            self._send(0)

    def deadline(self, timeout_s: float | None) -> float:
        """Convert the time limit of a `flush` to a deadline on the clock `time.monotonic`."""
        return self._connection.deadline("timeout_s", timeout_s)

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all updates are acknowledged. Batches that arrive meanwhile are kept.

        Args:
            timeout_s: time limit in seconds. None: the client's default; 0: do not wait; `math.inf`: as long as the
                server is reachable.

        Raises:
            DeadlineExceededError: timed out. The updates are kept and sent again later.
            ReplayError: as for `next()`.
        """
        self._check_usable()
        deadline = self._connection.deadline("timeout_s", timeout_s)
        if self._keys:
            self._send(0)
        while waiting := self.unacknowledged:
            if time.monotonic() >= deadline:
                raise DeadlineExceededError(
                    f"{waiting} updates of table {self._table.name!r} were not acknowledged in time"
                )
            self._receive(deadline)

    def close(self, *, timeout_s: float | None = None) -> None:
        """Flush and close. Idempotent; does nothing in a forked child.

        Args:
            timeout_s: as for `flush`.

        Raises:
            ReplayError: as for `flush`; the sampler is closed anyway.
        """
        if self._connection.is_forked or self._is_closed:
            return
        try:
            self.flush(timeout_s=timeout_s)
        finally:
            self.cancel()

    def cancel(self, *, is_waited_for: bool = False) -> None:
        """Close without a flush: unacknowledged updates may be lost.

        Args:
            is_waited_for: whether another thread may be in `next()`, which then raises `ClosedError`.
        """
        if not self._connection.is_forked:
            self._is_closed = True
            self._stream.close(is_received=is_waited_for)

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Flush and close. After an error in the block, only close, because the updates may be incomplete."""
        if error is None:
            self.close()
        else:
            self.cancel()

    def _send(self, batches: int) -> None:
        """Send pending updates, and request ``batches`` batches."""
        request = replay_pb2.LearnRequest(table=self._table.name, table_uid=self._table.uid)
        has_update = bool(self._keys)
        if has_update:
            request.update.keys = b"".join(self._keys)
            request.update.priorities = b"".join(self._priorities)
            self._keys.clear()
            self._priorities.clear()
            self._keys_kept = 0
        if batches:
            request.draw.CopyFrom(self._draw)
            request.batches = batches
            request.ahead = self.in_flight
            if self._reader.mapped is not None:
                request.same_host.CopyFrom(self._reader.mapped.request)
        self._stream.send(
            _Exchange(message=request.SerializeToString(), draw=self._draw, has_update=has_update, batches=batches)
        )

    def _receive(self, deadline: float) -> None:
        """Process the next reply."""
        exchange, answer = self._stream.receive(deadline)
        update, batches = self._reader.learned(answer)
        self.updated += update.updated
        self.stale += update.stale
        self._batches.extend(batch or self._draw_over_wire(exchange.draw) for batch in batches)

    def _check_usable(self) -> None:
        self._connection.check_not_forked()
        if self._is_closed:
            raise ClosedError("this sampler is closed")
