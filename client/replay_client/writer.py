"""Actors write row by row; rows travel in blocks, in the background, each exactly once.

    with table.writer() as writer:
        for ...:
            writer.append(obs=obs, action=action, reward=reward, next_obs=next_obs, terminated=terminated)
            if terminated or truncated:
                writer.end_episode()
        writer.flush(timeout_s=10)      # all acknowledged; leaving the block does this, too

`append` copies the row and returns. A block is sent when it is full, `max_delay_s` after its first row, at the end of
an episode, and on `flush`. At most `MAX_BLOCKS_IN_FLIGHT` blocks wait for their acknowledgement: when the server is
slow, or away, or the table's rate limiter or a full queue holds inserts up, `append` waits.

When the connection breaks, the writer opens it again and sends what was not acknowledged; sequence numbers keep it
from being inserted twice. Only when the server stays away for `reconnect_timeout_s`, or refuses rows, does a call
raise. After `ServerUnavailableError`, and when the server's disk is full, the next call tries again; after any other
error the writer is at its end. Either way `unacknowledged_rows` has the rows that may not have arrived.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NoReturn

import numpy as np
from replay_proto.framing import Array, column_views, message_with_rows, split_message
from replay_proto.v1 import replay_pb2

from replay_client._rows.block import RowBlock
from replay_client._transport.answered_stream import AnsweredStream, Request
from replay_client._transport.connection import Connection
from replay_client._transport.insert_ids import WRITER_ID_BYTES
from replay_client._transport.time_limits import left_s, time_limit
from replay_client.errors import (
    ClosedError,
    DeadlineExceededError,
    ForkedError,
    InternalServerError,
    InvalidArgumentError,
    ReplayError,
    SequenceTooOldError,
    ServerUnavailableError,
    TableResetError,
    WriterUnknownError,
)
from replay_client.results.description import TableDescription

log = logging.getLogger(__name__)

MAX_BLOCKS_IN_FLIGHT: Final = 16
"""A server keeps this many of a writer's inserts on record, to know them when they are repeated."""
BLOCK_ROWS: Final = 1024
"""A block has at most so many rows,"""
BLOCK_BYTES: Final = 1 << 20
"""and at most so many bytes, unless one row is larger."""
GIVE_UP_S: Final = 5.0
"""How long a writer that is left because of an error waits for its rows to be acknowledged."""
_STREAM_BITS: Final = 64


@dataclass
class _Block(Request):
    """Rows on their way."""

    sequence: int = 0
    row_count: int = 0


class Writer:
    """See the module. Threads may share one; each episode belongs to the writer, not to a thread."""

    def __init__(
        self,
        connection: Connection,
        table: TableDescription,
        *,
        block_rows: int | None = None,
        max_blocks_in_flight: int = MAX_BLOCKS_IN_FLIGHT,
        max_delay_s: float = 0.1,
        reconnect_timeout_s: float | None = 60.0,
    ) -> None:
        """Get ready to write; the stream is opened with the first block.

        Args:
            connection: to the server.
            table: the table; one that was dropped and made anew is another.
            block_rows: rows in a block; None: as many as `BLOCK_BYTES` hold, at most `BLOCK_ROWS`. In any case not
                more than the server takes at once: 4 MiB or one row, what the table's ring has to spare, and what its
                rate limiter allows.
            max_blocks_in_flight: how many blocks may wait for acknowledgement, 1 to `MAX_BLOCKS_IN_FLIGHT`.
            max_delay_s: for how long a row may wait for its block to fill, in seconds; `math.inf`: until it is full.
            reconnect_timeout_s: for how long to try to reach a server that is away, in seconds; see
                `replay_client._transport.time_limits`.

        Raises:
            InvalidArgumentError: for a number out of range.
        """
        if not 1 <= max_blocks_in_flight <= MAX_BLOCKS_IN_FLIGHT:
            raise _out_of_range("max_blocks_in_flight", f"1 to {MAX_BLOCKS_IN_FLIGHT}", max_blocks_in_flight)
        if block_rows is not None and block_rows < 1:
            raise _out_of_range("block_rows", "at least 1", block_rows)
        self.stream = secrets.randbits(_STREAM_BITS) or 1
        """uint64: number of this stream of experience, random; every row carries it."""
        self.episode = 0
        """Number of the current episode within the stream; every row carries it."""
        self._connection = connection
        self._process = os.getpid()
        self._table = table
        self._block = RowBlock(table.schema, _block_rows(table, block_rows))
        self._block_began_s = 0.0
        self._max_blocks_in_flight = max_blocks_in_flight
        self._max_delay_s = time_limit("max_delay_s", max_delay_s, connection.timeout_s)
        self._writer_id = secrets.token_bytes(WRITER_ID_BYTES)
        self._sequence = 0
        self._acknowledged = 0
        self._error: ReplayError | None = None  # to be raised by the next call
        self._is_paused = False  # the background waits for a call before it tries again
        self._is_closed = False
        self._stream: AnsweredStream[_Block] = AnsweredStream(
            connection,
            "Write",
            reconnect_timeout_s=reconnect_timeout_s,
            keep_refused=True,
            before_waiting=self._send_if_due,
        )
        self._changed = self._stream.changed
        self._receiver: threading.Thread | None = None

    @property
    def acknowledged(self) -> int:
        """Rows that the server has."""
        return self._acknowledged

    @property
    def in_flight(self) -> int:
        """Rows that were appended and are not acknowledged yet."""
        with self._changed:
            return self._block.count + sum(block.row_count for block in self._stream.pending)

    def __repr__(self) -> str:
        """Of what, and where."""
        return f"<Writer of table {self._table.name!r} at {self._connection.address}: {self.in_flight} rows in flight>"

    def __reduce__(self) -> NoReturn:
        """Refuse to pickle: a stream belongs to its process.

        Raises:
            TypeError: always.
        """
        raise TypeError("a writer cannot be pickled or copied; send the table and create a writer there")

    def append(self, row: Mapping[str, Any] | None = None, /, *, priority: float | None = None, **columns: Any) -> None:
        """Add a row to the current episode. It is copied; it waits only when too many blocks are in flight.

        Args:
            row: values by column, as an alternative to naming them (a column may be called ``priority``).
            priority: the absolute TD error, if it is known; None: the largest live priority.
            **columns: values by column, ``[*shape]`` each; a nested observation as a mapping or a tuple.

        Raises:
            InvalidArgumentError: it is not a row of this table.
            ReplayError: an earlier row could not be sent. This row was not added.
        """
        values: Mapping[str, Any] = columns if row is None else {**row, **columns}
        if os.getpid() != self._process:
            raise _forked()
        with self._changed:
            if self._error is not None or self._is_paused or self._is_closed:
                self._check()
            block = self._block
            while block.count == block.capacity or not block.accepts(priority):
                self._send_block(math.inf)
            block.add(values, priority)
            if block.count == 1:
                self._begin_block()
            if block.count == block.capacity and len(self._stream.pending) < self._max_blocks_in_flight:
                self._send_block(math.inf)

    def end_episode(self) -> None:
        """What is appended from now on belongs to the next episode.

        Raises:
            ReplayError: an earlier row could not be sent. The episode goes on.
        """
        self._check_process()
        with self._changed:
            self._check()
            self._send_block(math.inf)
            self.episode += 1

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until everything appended so far is acknowledged.

        Args:
            timeout_s: how long to wait, in seconds. None: the client's own limit; 0: not at all; `math.inf`: as long
                as the server can be reached.

        Raises:
            DeadlineExceededError: it took too long. The rows are kept and go on being sent.
            ReplayError: rows could not be sent.
        """
        self._check_process()
        deadline = self._connection.deadline("timeout_s", timeout_s)
        with self._changed:
            self._check()
            self._send_block(deadline)
            last = self._sequence
            while self._stream.pending and self._stream.pending[0].sequence <= last:
                self._wait(deadline)

    def close(self, *, timeout_s: float | None = None) -> None:
        """Flush and end. Does nothing in a forked child, or the second time.

        Args:
            timeout_s: as for `flush`.

        Raises:
            ReplayError: as `flush`; the writer is closed all the same.
        """
        if os.getpid() != self._process or self._is_closed:
            return
        try:
            self.flush(timeout_s=timeout_s)
        finally:
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()
            self._stream.close()
            if self._receiver is not None:
                self._receiver.join()

    def unacknowledged_rows(self) -> dict[str, Array]:
        """The rows that were appended and not acknowledged, oldest first: some of them may have arrived.

        Returns:
            By column, ``dtype[n, *shape]``; as `Table.insert` takes them.
        """
        schema = self._table.schema
        with self._changed:
            messages = [(block.data, block.row_count) for block in self._stream.pending]
            waiting = self._block.columns()
        parts = [column_views(schema, _split(data).rows, count) for data, count in messages]
        return {name: np.concatenate([*(part[name] for part in parts), waiting[name]]) for name in schema}

    def __enter__(self) -> Writer:
        """Use it in a ``with`` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Flush and end. After an error of the block, Ctrl-C included, give up after `GIVE_UP_S`.

        How many rows were not acknowledged by then is logged as a warning; the error of the block is not hidden.
        """
        try:
            self.close(timeout_s=None if error is None else GIVE_UP_S)
        except BaseException as failure:
            if error is None and isinstance(failure, ReplayError):
                raise
            log.warning("%d rows of table %r were not acknowledged", self.in_flight, self._table.name)
            if not isinstance(failure, ReplayError):
                raise

    def _begin_block(self) -> None:
        self._block_began_s = self._connection.clock()
        if self._receiver is None:
            self._receiver = threading.Thread(target=self._receive_all, name="replay-writer", daemon=True)
            self._receiver.start()
        self._changed.notify_all()  # somebody has to watch how old it gets

    def _send_if_due(self) -> float | None:
        """Send the block if its first row has waited long enough; the seconds until then, None if it is empty."""
        if not self._block.count:
            return None
        left = left_s(self._block_began_s + self._max_delay_s, self._connection.clock())
        if left != 0:
            return left
        if len(self._stream.pending) >= self._max_blocks_in_flight:
            return None  # An acknowledgement wakes us.
        self._hand_over()
        return None

    def _send_block(self, deadline: float) -> None:
        """Send what is in the block, once there is room for it on the way."""
        while self._block.count and len(self._stream.pending) >= self._max_blocks_in_flight:
            self._wait(deadline)
        if self._block.count:
            self._hand_over()

    def _hand_over(self) -> None:
        self._sequence += 1
        count = self._block.count
        head = replay_pb2.WriteRequest(
            table=self._table.name,
            table_uid=self._table.uid,
            writer_id=self._writer_id,
            insertion=replay_pb2.Insertion(sequence=self._sequence, stream=self.stream, episode=self.episode),
        )
        self._stream.send(_Block(self._block.take(head), sequence=self._sequence, row_count=count))

    def _wait(self, deadline: float) -> None:
        """Wait for any change; raise if there is trouble, or no time left."""
        left = left_s(deadline, self._connection.clock())
        if left == 0:
            raise DeadlineExceededError(
                f"{self.in_flight:,} rows of table {self._table.name!r} were not acknowledged in time; an open "
                "writer keeps sending them"
            )
        self._changed.wait(left)
        self._check()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise _forked()

    def _check(self) -> None:
        """Raise what the background met; when that may pass and was raised before, have it try again."""
        if self._is_closed:
            raise ClosedError("this writer is closed")
        error = self._error
        if error is None:
            if self._is_paused:
                self._is_paused = False
                self._changed.notify_all()
            return
        if _may_pass(error):
            self._error = None
        raise error.with_traceback(None)

    def _receive_all(self) -> None:
        """Take in acknowledgements until the writer is closed or at its end; runs in a thread of its own."""
        while True:
            try:
                block, answer = self._stream.receive()
                self._acknowledge(block, replay_pb2.WriteResponse.FromString(bytes(answer)).sequence)
            except SequenceTooOldError:
                self._acknowledge_unanswered()
            except TableResetError:
                continue  # The block waited while others' rows were removed; it was not inserted, and is still wanted.
            except WriterUnknownError as error:
                if not self._begin_anew():
                    return self._end(error)
            except ClosedError as error:  # The writer was closed, or the client under it.
                return self._end(error)
            except ReplayError as error:
                if not _may_pass(error):
                    return self._end(error)
                self._report(error)
            except Exception as error:
                log.exception("a writer of table %r failed", self._table.name)
                return self._end(InternalServerError(f"cannot parse the reply: {error!r}"))

    def _acknowledge(self, block: _Block, sequence: int) -> None:
        if sequence != block.sequence:
            raise InternalServerError(f"expected a reply to block {block.sequence}, got one to block {sequence}")
        with self._changed:
            self._acknowledged += block.row_count
            self._changed.notify_all()

    def _acknowledge_unanswered(self) -> None:
        """The oldest block was applied long ago: only its keys are not known, and nobody here wants them."""
        with self._changed:
            oldest, *others = self._stream.pending
            self._stream.replace_pending(others)
            self._acknowledge(oldest, oldest.sequence)

    def _begin_anew(self) -> bool:
        """Go on as a new writer. False if that could insert rows twice.

        A server forgets writers that were silent for long. If nothing that is pending was ever sent before the
        stream that it refused, nothing of it can have been applied.
        """
        with self._changed:
            if any(block.attempts > 1 for block in self._stream.pending):
                return False
            self._writer_id = secrets.token_bytes(WRITER_ID_BYTES)
            renumbered = [
                _renumbered(block, self._writer_id, sequence)
                for sequence, block in enumerate(self._stream.pending, start=1)
            ]
            self._sequence = len(renumbered)
            self._stream.replace_pending(renumbered)
            return True

    def _report(self, error: ReplayError) -> None:
        """Have the next call raise the error, and wait for the one after it."""
        with self._changed:
            self._error = error
            self._is_paused = True
            self._changed.notify_all()
            while self._is_paused and not self._is_closed:
                self._changed.wait()

    def _end(self, error: ReplayError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()


def _may_pass(error: ReplayError) -> bool:
    return isinstance(error, ServerUnavailableError) or error.reason == "NO_SPACE"


def _block_rows(table: TableDescription, wanted: int | None) -> int:
    fitting = wanted or max(1, min(BLOCK_ROWS, BLOCK_BYTES // table.row_bytes))
    return min(fitting, table.rows_per_insert)


def _split(data: bytes) -> Any:
    return split_message(replay_pb2.WriteRequest, data)


def _renumbered(block: _Block, writer_id: bytes, sequence: int) -> _Block:
    framed = split_message(replay_pb2.WriteRequest, block.data)
    framed.head.writer_id = writer_id
    framed.head.insertion.sequence = sequence
    rows = np.frombuffer(framed.rows, np.uint8)
    message = message_with_rows(framed.head, len(rows), lambda into: np.copyto(into, rows))
    return _Block(message, sequence=sequence, row_count=block.row_count)


def _forked() -> ForkedError:
    return ForkedError("this writer was created before a fork; create a client in the child, or use spawn")


def _out_of_range(field: str, expected: str, got: int) -> ReplayError:
    return InvalidArgumentError.of_field(field, expected, str(got))
