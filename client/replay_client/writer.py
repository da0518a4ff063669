"""Writes rows for actors: collects them in blocks and sends each exactly once, in the background.

    with table.writer() as writer:
        for ...:
            writer.append(obs=obs, action=action, reward=reward, next_obs=next_obs, terminated=terminated)
            if terminated or truncated:
                writer.end_episode()
        writer.flush(timeout_s=10)      # wait for acknowledgement; leaving the block also does this

`append` copies the row and returns. A block is sent when it is full, `max_delay_s` after its first row, at the end of
an episode, and by `flush`. While `max_blocks_in_flight` blocks are unacknowledged, `append` waits. This happens if the
server is slow or unreachable, or if a rate limiter or a full queue delays inserts.

When the connection breaks, the writer reconnects and resends unacknowledged rows; sequence numbers prevent duplicates.
A call raises only if the server is unreachable for `reconnect_timeout_s` or refuses rows. After
`ServerUnavailableError`, or if the server's disk is full, the next call retries; after any other error, the writer is
unusable. In both cases `unacknowledged_rows` returns the rows that may not have arrived.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
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
"""The server remembers this many inserts per writer to recognize retries."""
BLOCK_ROWS: Final = 1024
"""Maximum rows per block."""
BLOCK_BYTES: Final = 1 << 20
"""Maximum bytes per block, unless a single row is larger."""
GIVE_UP_S: Final = 5.0
"""How long the exit of a ``with`` block waits for acknowledgements after an error in the block."""
_STREAM_BITS: Final = 64


@dataclass
class _Block(Request):
    """Rows in flight."""

    sequence: int = 0
    row_count: int = 0


class Writer:
    """See the module. Thread-safe, but all threads share the current episode."""

    def __init__(
        self,
        connection: Connection,
        table: TableDescription,
        *,
        block_rows: int | None,
        max_blocks_in_flight: int,
        max_delay_s: float,
        reconnect_timeout_s: float | None,
    ) -> None:
        """Created by `Table.writer`; the first block opens the stream.

        Blocks never exceed the largest insert that the server allows; see `TableDescription.rows_per_insert`.
        """
        if not 1 <= max_blocks_in_flight <= MAX_BLOCKS_IN_FLIGHT:
            raise InvalidArgumentError.of_field(
                "max_blocks_in_flight", f"1 to {MAX_BLOCKS_IN_FLIGHT}", str(max_blocks_in_flight)
            )
        if block_rows is not None and block_rows < 1:
            raise InvalidArgumentError.of_field("block_rows", "at least 1", str(block_rows))
        self.stream = secrets.randbits(_STREAM_BITS) or 1
        """uint64: random number that identifies this stream of experience, stored with every row."""
        self.episode = 0
        """Number of the current episode in the stream, stored with every row."""
        self._connection = connection
        self._table = table
        self._block = RowBlock(table.schema, _block_rows(table, block_rows))
        self._block_began_s = 0.0
        self._max_blocks_in_flight = max_blocks_in_flight
        self._max_delay_s = time_limit("max_delay_s", max_delay_s, connection.timeout_s)
        self._writer_id = secrets.token_bytes(WRITER_ID_BYTES)
        self._sequence = 0
        self._acknowledged = 0
        self._error: ReplayError | None = None  # to be raised by the next call
        self._is_paused = False  # the background thread waits for a call before it retries
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
        """Number of acknowledged rows."""
        return self._acknowledged

    @property
    def in_flight(self) -> int:
        """Number of appended rows that are not yet acknowledged."""
        with self._changed:
            return self._block.count + sum(block.row_count for block in self._stream.pending)

    def __repr__(self) -> str:
        return f"<Writer of table {self._table.name!r} at {self._connection.address}: {self.in_flight} rows in flight>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a writer cannot be pickled or copied; send the table and create a writer there")

    def append(self, row: Mapping[str, Any] | None = None, /, *, priority: float | None = None, **columns: Any) -> None:
        """Append a copy of a row to the current episode. Waits only if too many blocks are in flight.

        Args:
            row: values by column, as an alternative to keyword arguments; needed for a column named ``priority``.
            priority: the absolute TD error, if known; None: the largest live priority.
            **columns: values ``[*shape]`` by column; nested observations as mappings or tuples.

        Raises:
            InvalidArgumentError: the row does not match the table.
            ReplayError: an earlier row could not be sent. This row was not appended.
        """
        values: Mapping[str, Any] = columns if row is None else {**row, **columns}
        self._connection.check_not_forked()
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
        """End the current episode; later rows belong to the next one.

        Raises:
            ReplayError: an earlier row could not be sent. The episode continues.
        """
        self._connection.check_not_forked()
        with self._changed:
            self._check()
            self._send_block(math.inf)
            self.episode += 1

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all appended rows are acknowledged.

        Args:
            timeout_s: time limit in seconds. None: the client's default; 0: do not wait; `math.inf`: as long as the
                server is reachable.

        Raises:
            DeadlineExceededError: timed out. The writer keeps sending the rows.
            ReplayError: rows could not be sent.
        """
        self._connection.check_not_forked()
        deadline = self._connection.deadline("timeout_s", timeout_s)
        with self._changed:
            self._check()
            self._send_block(deadline)
            last = self._sequence
            while self._stream.pending and self._stream.pending[0].sequence <= last:
                self._wait(deadline)

    def close(self, *, timeout_s: float | None = None) -> None:
        """Flush and close. Idempotent; does nothing in a forked child.

        Args:
            timeout_s: as for `flush`.

        Raises:
            ReplayError: as for `flush`; the writer is closed anyway.
        """
        if self._connection.is_forked or self._is_closed:
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
        """Return unacknowledged rows, oldest first. Some of them may have arrived.

        Returns:
            Columns by name, ``dtype[n, *shape]``, suitable for `Table.insert`.
        """
        schema = self._table.schema
        with self._changed:
            messages = [(block.data, block.row_count) for block in self._stream.pending]
            waiting = self._block.columns()
        parts = [
            column_views(schema, split_message(replay_pb2.WriteRequest, data).rows, count) for data, count in messages
        ]
        return {name: np.concatenate([*(part[name] for part in parts), waiting[name]]) for name in schema}

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Flush and close. After an error in the block, including Ctrl-C, give up after `GIVE_UP_S`.

        A writer that gives up logs the number of unacknowledged rows as a warning, and the original error propagates.
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
        self._block_began_s = time.monotonic()
        if self._receiver is None:
            self._receiver = threading.Thread(target=self._receive_all, name="replay-writer", daemon=True)
            self._receiver.start()
        self._changed.notify_all()  # the background thread must check the block's age

    def _send_if_due(self) -> float | None:
        """Send the block if it is due. Return after how many seconds this must be called again, or None."""
        if not self._block.count:
            return None
        left = left_s(self._block_began_s + self._max_delay_s)
        if left != 0:
            return left
        if len(self._stream.pending) >= self._max_blocks_in_flight:
            return None  # woken by an acknowledgement
        self._hand_over()
        return None

    def _send_block(self, deadline: float) -> None:
        """Wait until fewer than `max_blocks_in_flight` blocks are in flight, and send the block."""
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
        """Wait for a change; raise on errors and at the deadline."""
        left = left_s(deadline)
        if left == 0:
            raise DeadlineExceededError(
                f"{self.in_flight:,} rows of table {self._table.name!r} were not acknowledged in time; an open "
                "writer keeps sending them"
            )
        self._changed.wait(left)
        self._check()

    def _check(self) -> None:
        """Raise the background thread's error. If an earlier call raised it and it may pass, let the thread retry."""
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
        """Process acknowledgements until the writer is closed or fails; runs in a background thread."""
        while True:
            try:
                block, answer = self._stream.receive()
                self._acknowledge(block, replay_pb2.WriteResponse.FromString(bytes(answer)).sequence)
            except SequenceTooOldError:
                self._acknowledge_unanswered()
            except TableResetError:
                continue  # The table was reset while the block waited, so it was not inserted: send it again.
            except WriterUnknownError as error:
                if not self._begin_anew():
                    return self._end(error)
            except ClosedError as error:  # The writer or its client was closed.
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
        """Acknowledge the oldest block. It was applied so long ago that the server has forgotten its keys."""
        with self._changed:
            oldest, *others = self._stream.pending
            self._stream.replace_pending(others)
            self._acknowledge(oldest, oldest.sequence)

    def _begin_anew(self) -> bool:
        """Switch to a new writer id after the server has forgotten this one; False if that could insert rows twice.

        Rows cannot be inserted twice if no pending block was sent on an earlier stream.
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
        """Make the next call raise the error, and wait for the call after that."""
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


def _renumbered(block: _Block, writer_id: bytes, sequence: int) -> _Block:
    framed = split_message(replay_pb2.WriteRequest, block.data)
    framed.head.writer_id = writer_id
    framed.head.insertion.sequence = sequence
    rows = np.frombuffer(framed.rows, np.uint8)
    message = message_with_rows(framed.head, len(rows), lambda into: np.copyto(into, rows))
    return _Block(message, sequence=sequence, row_count=block.row_count)
