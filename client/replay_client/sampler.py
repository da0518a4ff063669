"""Learners draw batches over a stream on which they also send priorities.

    with table.sampler(256, beta=0.4, prefetch=3) as sampler:
        for batch in sampler:
            td_errors = learn(batch)
            sampler.update_priorities(batch, td_errors)
            sampler.beta = schedule(step)

Each `next()` sends one request, which carries the updates handed over before it, and returns the oldest batch on its
way. With ``prefetch=p`` a batch was therefore asked for ``p - 1`` steps before it is returned, and does not know of the
last ``p - 1`` updates: the learner never waits for the network, in exchange for priorities that are a few steps old.
With ``prefetch=1`` nothing is asked for ahead, and every batch knows of every update before it. From 8 on, several
batches are asked for in one message, whose updates wait for each other; the bound stays ``p - 1``. What is on its way
counts as drawn to a table's rate limiter, and is gone from a queue, whether it is used or not.

When the connection breaks it is opened again, and what was not answered is asked for again: updates set the same
priorities once more, batches are drawn anew.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NoReturn

from numpy.typing import ArrayLike
from replay_proto.calls import MOST_KEYS_AT_ONCE
from replay_proto.v1 import replay_pb2

from replay_client._answers import AnswerReader
from replay_client._rows.checks import checked_keys, checked_priorities
from replay_client._rows.columns import BatchOrKeys
from replay_client._transport.answered_stream import AnsweredStream, Request
from replay_client._transport.connection import Connection
from replay_client._transport.frame_stream import FrameStream
from replay_client.batch import Batch
from replay_client.draws import DrawOptions, checked_whole
from replay_client.errors import ClosedError, DeadlineExceededError, ForkedError, InvalidArgumentError
from replay_client.results.description import TableDescription

_MESSAGES_IN_FLIGHT: Final = 4
"""A sampler that prefetches more batches than this asks for several in one message,"""
_MOST_TOGETHER: Final = 64
"""but never for more than this many: a server draws those of one message while nobody else is served."""
UPDATES_KEPT: Final = MOST_KEYS_AT_ONCE
"""Updates wait for the next batch to be asked for; so many rows of them, the most of one message, do not."""


@dataclass(kw_only=True)
class _Exchange(Request):
    """One message of a learner and what is due for it."""

    options: DrawOptions
    has_update: bool = False
    batches: int = 0


class Sampler:
    """An iterator over batches, without end. For one thread."""

    def __init__(
        self,
        connection: Connection,
        table: TableDescription,
        options: DrawOptions,
        reader: AnswerReader,
        draw_over_wire: Callable[[DrawOptions], Batch],
        *,
        open_around: Callable[[], FrameStream | None] = lambda: None,
        prefetch: int = 3,
        reconnect_timeout_s: float | None = 60.0,
    ) -> None:
        """Get ready to draw; the first `next()` opens the stream.

        Args:
            connection: to the server.
            table: the table; one that was dropped and made anew is another.
            options: what to draw.
            reader: reads the answers.
            draw_over_wire: draws a batch in place of one whose rows were overwritten before they were copied.
            open_around: opens a way around gRPC, if there is one.
            prefetch: how many batches are on their way while `next()` waits, at least 1.
            reconnect_timeout_s: for how long to try to reach a server that is away, in seconds; see
                `replay_client._transport.time_limits`.

        Raises:
            InvalidArgumentError: for a prefetch below 1, or a time limit that is none.
        """
        self.prefetch = prefetch
        self.updated = 0
        """Rows whose priority was set, over all updates acknowledged so far."""
        self.stale = 0
        """Keys of updates that were not live any more, over all updates acknowledged so far."""
        self._options = options
        self._reader = reader
        self._draw_over_wire = draw_over_wire
        self._connection = connection
        self._process = os.getpid()
        self._table = table
        self._stream: AnsweredStream[_Exchange] = AnsweredStream(
            connection,
            "Learn",
            reconnect_timeout_s=reconnect_timeout_s,
            keep_refused=False,
            open_around=open_around,
        )
        self._batches: deque[Batch] = deque()  # that came while something else was waited for
        self._keys: list[bytes] = []
        self._priorities: list[bytes] = []
        self._keys_kept = 0
        self._is_closed = False

    @property
    def beta(self) -> float:
        """Exponent of the weights, for what is asked from now on; `Batch.beta` says what a batch had."""
        return self._options.beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._options = self._options.with_beta(beta)

    @property
    def prefetch(self) -> int:
        """How many batches are on their way while `next()` waits; may be set, to at least 1."""
        return self._prefetch

    @prefetch.setter
    def prefetch(self, prefetch: int) -> None:
        if checked_whole("prefetch", prefetch) < 1:
            raise InvalidArgumentError.of_field("prefetch", "at least 1", str(prefetch))
        self._prefetch = prefetch

    @property
    def in_flight(self) -> int:
        """Batches that were asked for and not returned yet."""
        pending = tuple(self._stream.pending)  # another thread may be at work
        return len(self._batches) + sum(exchange.batches for exchange in pending)

    @property
    def unacknowledged(self) -> int:
        """Messages with updates that are not acknowledged yet; updates that were not sent yet count as one."""
        with self._stream.changed:
            return bool(self._keys) + sum(exchange.has_update for exchange in self._stream.pending)

    def __repr__(self) -> str:
        """Of what, and where."""
        return f"<Sampler of table {self._table.name!r} at {self._connection.address}: {self._options}>"

    def __reduce__(self) -> NoReturn:
        """Refuse to pickle: a stream belongs to its process.

        Raises:
            TypeError: always.
        """
        raise TypeError("a sampler cannot be pickled or copied; send the table and create a sampler there")

    def __iter__(self) -> Sampler:
        """The sampler is its own iterator."""
        return self

    def __next__(self) -> Batch:
        """Ask for a batch, sending the updates handed over before, and return the oldest on its way.

        Raises:
            TableReplacedError: the table was dropped and another has its name.
            TableEmptyError: it has no rows, and the sampler was not told to wait.
            LimitedError: its rate limiter or queue allows no batch, and the sampler was not told to wait.
            DeadlineExceededError: it had no rows, or allowed no batch, for `timeout_s` seconds.
            TableResetError: it was reset while the batch was waited for. Calling again goes on.
            ServerUnavailableError: the server was away for `reconnect_timeout_s`. Calling again tries again.
            ReplayError: the server refused for another reason.
        """
        self._check_usable()
        most = min(_MOST_TOGETHER, MOST_KEYS_AT_ONCE // self._options.batch_size)
        together = max(1, min(most, self.prefetch // _MESSAGES_IN_FLIGHT))
        while (missing := self.prefetch - self.in_flight) >= together:
            self._send(min(missing, together))
        if self._keys and together == 1:  # left over only where an error kept earlier batches on their way
            self._send(0)
        while not self._batches:
            self._receive(math.inf)
        return self._batches.popleft()

    def update_priorities(self, batch_or_keys: BatchOrKeys, priorities: ArrayLike) -> None:
        """Hand over new priorities; they are sent with what the next `next()` asks for, or by `flush`.

        Args:
            batch_or_keys: a batch, or int64[n]: keys of rows. Of a key given more than once, the last priority counts.
            priorities: float64[n]: the absolute TD errors, finite; an array, or a tensor on any device, which is
                waited for.

        Raises:
            InvalidArgumentError: for anything else.
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
        """When a time limit is over, by `time.monotonic`; see `flush`."""
        return self._connection.deadline("timeout_s", timeout_s)

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until every update handed over so far is acknowledged. Batches that arrive meanwhile are kept.

        Args:
            timeout_s: how long to wait, in seconds. None: the client's own limit; 0: not at all; `math.inf`: as long
                as the server can be reached.

        Raises:
            DeadlineExceededError: it took too long. The updates are kept, and sent again later.
            ReplayError: as for `next()`.
        """
        self._check_usable()
        deadline = self._connection.deadline("timeout_s", timeout_s)
        if self._keys:
            self._send(0)
        while waiting := self.unacknowledged:
            if self._connection.clock() >= deadline:
                raise DeadlineExceededError(
                    f"{waiting} updates of table {self._table.name!r} were not acknowledged in time"
                )
            self._receive(deadline)

    def close(self, *, timeout_s: float | None = None) -> None:
        """Flush and end. Does nothing in a forked child, or the second time.

        Args:
            timeout_s: as for `flush`.

        Raises:
            ReplayError: as `flush`; the sampler is closed all the same.
        """
        if os.getpid() != self._process or self._is_closed:
            return
        try:
            self.flush(timeout_s=timeout_s)
        finally:
            self.cancel()

    def cancel(self, *, is_waited_for: bool = False) -> None:
        """End at once, without a flush: updates that were not acknowledged may be lost.

        Args:
            is_waited_for: whether another thread may be in `next()`, which then raises `ClosedError`.
        """
        if os.getpid() == self._process:
            self._is_closed = True
            self._stream.close(is_received=is_waited_for)

    def __enter__(self) -> Sampler:
        """Use it in a ``with`` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Flush and end; after an error of the block only end: its updates may be half done."""
        if error is None:
            self.close()
        else:
            self.cancel()

    def _send(self, batches: int) -> None:
        """Send what was handed over, and ask for so many batches."""
        request = replay_pb2.LearnRequest(table=self._table.name, table_uid=self._table.uid)
        has_update = bool(self._keys)
        if has_update:
            request.update.keys = b"".join(self._keys)
            request.update.priorities = b"".join(self._priorities)
            self._keys.clear()
            self._priorities.clear()
            self._keys_kept = 0
        if batches:
            request.draw.CopyFrom(self._options.to_proto())
            request.batches = batches
            request.ahead = self.in_flight
            if self._reader.mapped is not None:
                request.same_host.CopyFrom(self._reader.mapped.request)
        self._stream.send(
            _Exchange(request.SerializeToString(), options=self._options, has_update=has_update, batches=batches)
        )

    def _receive(self, deadline: float) -> None:
        """Take in the next answer."""
        exchange, answer = self._stream.receive(deadline)
        update, batches = self._reader.learned(answer)
        self.updated += update.updated
        self.stale += update.stale
        self._batches.extend(batch or self._draw_over_wire(exchange.options) for batch in batches)

    def _check_usable(self) -> None:
        if os.getpid() != self._process:
            raise ForkedError("this sampler was created before a fork; create a client in the child, or use spawn")
        if self._is_closed:
            raise ClosedError("this sampler is closed")
