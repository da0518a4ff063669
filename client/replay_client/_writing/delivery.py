"""Delivers blocks of rows exactly once, in the background.

    delivery = Delivery(connection, table, block, ...)
    with delivery.changed:
        delivery.check()                        # raises what went wrong
        delivery.block.add(...)
        delivery.added()                        # sends the block when it is full, or due
        delivery.send(deadline)                 # sends it now
        delivery.wait_for_all(deadline)

A background thread processes acknowledgements, reconnects, and sends unacknowledged blocks again; sequence numbers
prevent duplicates. Errors are kept for the next call.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replay_proto.frames import Content
from replay_proto.framing import Array
from replay_proto.v1 import replay_pb2

from replay_client._rows.block import RowBlock
from replay_client._transport.answered_stream import AnsweredStream, Request
from replay_client._transport.connection import Connection
from replay_client._transport.frame_stream import FrameStream
from replay_client._transport.insert_ids import WRITER_ID_BYTES
from replay_client._transport.time_limits import left_s
from replay_client.errors import (
    ClosedError,
    DeadlineExceededError,
    InternalServerError,
    ReplayError,
    SequenceTooOldError,
    ServerUnavailableError,
    TableResetError,
    WriterUnknownError,
)
from replay_client.results.description import TableDescription

log = logging.getLogger(__name__)


@dataclass
class _Block(Request):
    """Rows in flight."""

    rows: RowBlock
    head: replay_pb2.WriteRequest

    @property
    def sequence(self) -> int:
        """Sequence number of the insert."""
        return self.head.insertion.sequence

    def parts(self) -> Sequence[Content]:
        """Serialize the message. This runs in the sending thread, so `append` does not spend time on it."""
        return self.rows.message(self.head)


class Delivery:
    """See the module. Callers of all methods except `close` must hold the lock `changed`."""

    def __init__(
        self,
        connection: Connection,
        table: TableDescription,
        block: RowBlock,
        *,
        max_blocks_in_flight: int,
        max_delay_s: float,
        reconnect_timeout_s: float | None,
        open_around: Callable[[], FrameStream | None],
    ) -> None:
        """Connect when the first block is sent. ``open_around`` opens a stream that bypasses gRPC, if available."""
        self.acknowledged = 0
        """Number of acknowledged rows."""
        self._table = table
        self.block = block
        """Rows that have not been sent."""
        self._spare: list[RowBlock] = []
        self._block_began_s = 0.0
        self._is_timed = True  # whether the sending thread will wake up when the block is due
        self._max_delay_s = max_delay_s
        self._max_blocks_in_flight = max_blocks_in_flight
        self._writer_id = secrets.token_bytes(WRITER_ID_BYTES)
        self._sequence = 0
        self._error: ReplayError | None = None  # the next call raises it
        self._is_paused = False  # whether the background thread waits for a call before it retries
        self._is_closed = False
        self._stream: AnsweredStream[_Block] = AnsweredStream(
            connection,
            "Write",
            reconnect_timeout_s=reconnect_timeout_s,
            keep_refused=True,
            before_waiting=self._send_if_due,
            open_around=open_around,
            sends_in_background=True,
        )
        self.changed = self._stream.changed
        """Guards all state; notified of every change."""
        self._receiver: threading.Thread | None = None

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @property
    def in_flight(self) -> int:
        """Number of unacknowledged rows, including those in the current block."""
        return self.block.count + sum(block.rows.count for block in self._stream.pending)

    def added(self, count: int = 1) -> None:
        """Call this after adding ``count`` rows to the block. If no ``count`` more rows fit, send it if possible."""
        if self.block.count == count:
            self._begin_block()
        if self.block.room < count:
            self.send_if_possible()

    def send_if_possible(self) -> None:
        """Send the block, unless too many blocks are in flight."""
        if self.block.count and not self._is_full:
            self._hand_over()

    def send(self, deadline: float) -> None:
        """Wait until fewer blocks are in flight, and send the block; raises like `wait_for_all`."""
        while self.block.count and self._is_full:
            self._wait(deadline)
        if self.block.count:
            self._hand_over()

    def check(self) -> None:
        """Raise the background thread's error, if any. A temporary error is raised once; the next call retries."""
        if self._error is None and not self._is_paused and not self._is_closed:
            return
        if self._is_closed:
            raise ClosedError("this writer is closed")
        error = self._error
        if error is None:
            self._is_paused = False
            self.changed.notify_all()
            return
        if _may_pass(error):
            self._error = None
        raise error.with_traceback(None)

    def wait_for_all(self, deadline: float) -> None:
        """Wait until all blocks sent so far are acknowledged.

        Raises:
            DeadlineExceededError: timed out.
            ReplayError: rows could not be sent.
        """
        last = self._sequence
        while self._stream.pending and self._stream.pending[0].sequence <= last:
            self._wait(deadline)

    def _wait(self, deadline: float) -> None:
        """Wait for a change; raise on errors and at the deadline."""
        left = left_s(deadline)
        if left == 0:
            raise DeadlineExceededError(
                f"{self.in_flight:,} rows of table {self._table.name!r} were not acknowledged in time; an open "
                "writer keeps sending them"
            )
        self.changed.wait(left)
        self.check()

    def unacknowledged(self) -> list[dict[str, Array]]:
        """The rows of each unacknowledged block by column, oldest first."""
        return [*(block.rows.columns() for block in self._stream.pending), self.block.columns()]

    def close(self) -> None:
        """Stop sending, and wait for the background thread to end."""
        with self.changed:
            self._is_closed = True
            self.changed.notify_all()
        self._stream.close()
        if self._receiver is not None:
            self._receiver.join()

    @property
    def _is_full(self) -> bool:
        return len(self._stream.pending) >= self._max_blocks_in_flight

    def _begin_block(self) -> None:
        self._block_began_s = time.monotonic()
        if self._receiver is None:
            self._receiver = threading.Thread(target=self._receive_all, name="replay-writer", daemon=True)
            self._receiver.start()
        if not self._is_timed:
            self._is_timed = True
            self.changed.notify_all()  # the sending thread must check the block's age

    def _send_if_due(self) -> float | None:
        """Send the block if it is due; return the seconds until then, or None if it is empty."""
        if not self.block.count:
            self._is_timed = False
            return None
        left = left_s(self._block_began_s + self._max_delay_s)
        if left != 0:
            return left
        self.send_if_possible()  # if impossible, the next acknowledgement wakes this thread
        return None

    def _hand_over(self) -> None:
        self._stream.send(_Block(self.block, self._next_head()))
        self.block = self._spare.pop() if self._spare else self.block.like()

    def _next_head(self) -> replay_pb2.WriteRequest:
        self._sequence += 1
        return replay_pb2.WriteRequest(
            table=self._table.name,
            table_uid=self._table.uid,
            writer_id=self._writer_id,
            insertion=replay_pb2.Insertion(sequence=self._sequence),
        )

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
        with self.changed:
            self.acknowledged += block.rows.count
            if block.attempts == 1:  # otherwise, the thread of an earlier stream may still be reading the block
                block.rows.clear()
                self._spare.append(block.rows)
            self.changed.notify_all()

    def _acknowledge_unanswered(self) -> None:
        """Acknowledge the oldest block, which the server applied long ago. The server has forgotten the keys."""
        with self.changed:
            oldest, *others = self._stream.pending
            self._stream.replace_pending(others)
            self._acknowledge(oldest, oldest.sequence)

    def _begin_anew(self) -> bool:
        """Switch to a new writer id; False if that could insert rows twice.

        The server forgets idle writers. If no pending block was sent on an earlier stream, the server has applied none.
        """
        with self.changed:
            if any(block.attempts > 1 for block in self._stream.pending):
                return False
            self._writer_id = secrets.token_bytes(WRITER_ID_BYTES)
            self._sequence = 0
            self._stream.replace_pending([_Block(block.rows, self._next_head()) for block in self._stream.pending])
            return True

    def _report(self, error: ReplayError) -> None:
        """Make the next call raise the error, and pause until the call after it."""
        with self.changed:
            self._error = error
            self._is_paused = True
            self.changed.notify_all()
            while self._is_paused and not self._is_closed:
                self.changed.wait()

    def _end(self, error: ReplayError) -> None:
        with self.changed:
            self._error = error
            self.changed.notify_all()


def _may_pass(error: ReplayError) -> bool:
    return isinstance(error, ServerUnavailableError) or error.reason == "NO_SPACE"
