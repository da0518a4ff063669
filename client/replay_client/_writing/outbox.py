"""Queues a writer's blocks for the server and processes the replies, without I/O or threads.

    outbox = Outbox(table, block, pending, ..., clock=time.monotonic, wake=wake)
    outbox.block.add(...)
    outbox.added()                                  # queues the block when it is full
    outbox.hand_over()                              # queues it now, unless too many blocks are in flight
    outbox.answered(request, answer)                # a reply came
    outbox.failed(error)                            # the stream ended; the outbox decides what that means
    outbox.check()                                  # raises what went wrong

Blocks are sent in order, each with the next sequence number of a random writer id, so the server applies each exactly
once, even if a block is sent again. `PendingRequests` sends unacknowledged blocks again when the connection breaks.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from replay_proto.frames import Content
from replay_proto.framing import Array
from replay_proto.v1 import replay_pb2

from replay_client._rows.block import RowBlock
from replay_client._transport.pending import PendingRequests, Request
from replay_client._transport.request_ids import SENDER_ID_BYTES
from replay_client.errors import (
    ClosedError,
    DeadlineExceededError,
    InternalServerError,
    ReplayError,
    SequenceTooOldError,
    ServerUnavailableError,
    TableNotFoundError,
    TableReplacedError,
    TableResetError,
    WriterUnknownError,
)
from replay_client.results.description import TableDescription

log = logging.getLogger(__name__)

_MAY_PASS: Final = ("NO_SPACE", "STORAGE_FAILED")
"""Reasons of refusals that may pass without the writer's doing: it keeps its blocks, and can send them again."""
IDLE_DELAY_S: Final = 0.1
"""A block that may wait longer is not sent at the end of an episode."""


@dataclass
class SentBlock(Request):
    """Rows in flight."""

    rows: RowBlock
    head: replay_pb2.WriteRequest
    is_own: bool = True
    """Whether the rows are of this writer's streams, so that it can use the block again."""

    @property
    def sequence(self) -> int:
        """Sequence number of the insert."""
        return self.head.insertion.sequence

    def parts(self) -> Sequence[Content]:
        """Serialize the message. This runs when the block is sent, so `append` does not spend time on it."""
        return self.rows.message(self.head)


class Outbox:
    """See the module."""

    def __init__(
        self,
        table: TableDescription,
        block: RowBlock,
        pending: PendingRequests[SentBlock],
        *,
        max_blocks_in_flight: int,
        min_delay_s: float,
        max_delay_s: float,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        """Begin with an empty block.

        Args:
            table: the table.
            block: the first block; later ones are like it.
            pending: the blocks in flight; refused ones must stay pending.
            max_blocks_in_flight: number of unacknowledged blocks at which `hand_over` refuses another one.
            min_delay_s: seconds from a block's first row until it is due, if the server asks for no more.
            max_delay_s: maximum seconds from a block's first row until it is due, even if the server asks for more.
            clock: returns the time in seconds.
            wake: called when a block can be sent or will be due (`due_in_s`), when `is_paused` ends, and at `close`.
        """
        self.block = block
        """Rows that have not been sent."""
        self.acknowledged = 0
        """Number of acknowledged rows."""
        self.inserted = table.inserted
        """Rows ever inserted into the table by anyone, according to the last reply."""
        self.shards_version = 0
        """Version of the server's shard map, according to the last reply."""
        self.is_paused = False
        """Whether sending stopped after a temporary error, until a call retries."""
        self.has_failed = False
        """Whether sending stopped for good."""
        self.is_closed = False
        """Whether `close` was called."""
        self.name = table.name
        """Name of the table."""
        self._table = table
        self._pending = pending
        self._max_blocks_in_flight = max_blocks_in_flight
        self._min_delay_s = min_delay_s
        self._max_delay_s = max_delay_s
        self._server_delay_s = 0.0  # what the server asks for
        self._clock = clock
        self._wake = wake
        self._spare: list[RowBlock] = []
        self._block_began_s = 0.0
        self._is_timed = False  # whether `due_in_s` will be called when the block is due
        self._writer_id = secrets.token_bytes(SENDER_ID_BYTES)
        self._error: ReplayError | None = None  # the next call raises it
        self.last_sequence = 0
        """Sequence number of the last block that was handed over."""
        self.is_changing = False
        """Whether a call is changing the block. If none is running, Ctrl-C has ended one: see `drop_torn`."""
        self.was_torn = False
        """Whether `drop_torn` was called, and the streams have not begun new episodes since."""

    @property
    def in_flight(self) -> int:
        """Number of unacknowledged rows, including those in the current block."""
        return self.block.count + sum(block.rows.count for block in self._pending.requests)

    @property
    def is_table_gone(self) -> bool:
        """Whether sending stopped for good because the server no longer has the table."""
        return self.has_failed and isinstance(self._error, (TableNotFoundError, TableReplacedError))

    @property
    def is_full(self) -> bool:
        """Whether too many blocks are in flight to hand over another one."""
        return len(self._pending.requests) >= self._max_blocks_in_flight

    def added(self, count: int = 1) -> None:
        """Note that ``count`` rows were added to the block. Try to hand it over if another ``count`` would not fit."""
        if self.block.count == count:
            self._block_began_s = self._clock()
            if not self._is_timed:
                self._is_timed = True
                self._wake()
        if self.block.room < count:
            self.hand_over()

    def hand_over(self) -> bool:
        """Queue the block for sending, unless it is empty or too many are in flight; return whether it is empty now."""
        if self.is_changing:
            self.drop_torn()
        if not self.block.count:
            return True
        if self.is_full:
            return False
        sequence = self.last_sequence + 1
        sent = SentBlock(self.block, self._head(sequence))
        following = self._spare.pop() if self._spare else self.block.like()
        queue = self._pending.requests.append
        # Python runs signal handlers after calls only. The last of these statements is one, so Ctrl-C comes after all.
        self.block, self.last_sequence = following, sequence
        queue(sent)
        self._wake()
        return True

    def drop_torn(self) -> None:
        """Drop the rows of the block, because Ctrl-C ended a call in the middle of changing it."""
        lost = "%d rows of table %r are lost: Ctrl-C ended a call of their writer in the middle; new episodes begin"
        log.warning(lost, self.block.count, self.name)
        self.block, self.is_changing, self.was_torn = self.block.like(), False, True

    def end_episode(self) -> None:
        """Hand over the block at the end of an episode, unless its rows may wait for longer than `IDLE_DELAY_S`.

        The actor may pause after the episode, so rows should not wait for later ones.
        """
        if max(self._min_delay_s, self._server_delay_s) <= IDLE_DELAY_S:
            self.hand_over()

    def due_in_s(self) -> float | None:
        """Hand over the block if it is due. Otherwise, return the seconds until it is due.

        Return None if the block was due, is empty, or has no time limit. If a due block could not be handed over, call
        again after the next acknowledgement.
        """
        if not self.block.count:
            self._is_timed = False
            return None
        delay_s = min(self._max_delay_s, max(self._min_delay_s, self._server_delay_s))
        left = self._block_began_s + delay_s - self._clock()
        if left <= 0:
            self.hand_over()
        return left if 0 < left < math.inf else None

    def has_acknowledged(self, sequence: int) -> bool:
        """Whether all blocks up to this sequence number are acknowledged."""
        return not self._pending.requests or self._pending.requests[0].sequence > sequence

    def unacknowledged(self) -> list[dict[str, Array]]:
        """Return the rows of each unacknowledged block by column, oldest first."""
        return [*(block.rows.columns() for block in self._pending.requests), self.block.columns()]

    def too_late(self) -> DeadlineExceededError:
        """Return the error of a call that has waited for too long."""
        return DeadlineExceededError(
            f"{self.in_flight:,} rows of table {self._table.name!r} were not acknowledged in time; an open "
            "writer keeps sending them"
        )

    def check(self) -> None:
        """Raise the error that stopped sending, if any. A temporary error is raised once; the next call retries."""
        if self._error is None and not self.is_paused and not self.is_closed:
            return
        if self.is_closed:
            raise ClosedError("this writer is closed")
        error = self._error
        if error is None:
            self.is_paused = False
            self._wake()
            return
        if not self.has_failed:
            self._error = None
        raise error.with_traceback(None)

    def resume(self) -> None:
        """Retry after a temporary error, although no call has raised it."""
        if self.is_paused:
            self.is_paused = False
            self._wake()

    def log_lost(self) -> None:
        """Log how many rows of a writer that nobody closed could not be delivered, if any."""
        if self.in_flight:
            log.warning(
                "%s rows of table %r are lost: their writer was not closed, and they were not acknowledged in time%s",
                *(f"{self.in_flight:,}", self.name, f" ({self._error})" if self._error else ""),
            )

    def close(self) -> None:
        """Refuse further calls."""
        self.is_closed = True
        self._wake()

    def surrender(self) -> list[RowBlock]:
        """Remove and return all unacknowledged rows, oldest first. Call only while there is no stream."""
        blocks = [*(sent.rows for sent in self._pending.requests), *([self.block] if self.block.count else [])]
        self._pending.replace([])
        self.block = self.block.like()
        return blocks

    def adopt(self, blocks: Iterable[RowBlock]) -> None:
        """Queue blocks that another outbox surrendered, even if too many blocks are in flight."""
        queue = self._pending.requests.append
        for rows in blocks:
            sequence = self.last_sequence + 1
            sent = SentBlock(rows, self._head(sequence), is_own=False)
            self.last_sequence = sequence  # no call follows before the next; see `hand_over`
            queue(sent)
        self._wake()

    def answered(self, block: SentBlock, answer: Content) -> None:
        """Process the reply to a block that was just removed from the pending ones."""
        response = replay_pb2.WriteResponse.FromString(bytes(answer))
        if response.sequence != block.sequence:
            got = f"got one to block {response.sequence}"
            raise InternalServerError(f"expected a reply to block {block.sequence}, {got}")
        self._server_delay_s = response.delay_s
        self.shards_version = response.shards_version
        self.inserted = max((keys.first + keys.count for keys in response.keys), default=self.inserted)
        self._acknowledge(block)

    def failed(self, error: Exception) -> None:
        """Process the error that ended the stream. The caller may reconnect unless `is_paused` or `has_failed`."""
        match error:
            case TableResetError():
                pass  # The table was reset while the block waited, so it was not inserted: send it again.
            case SequenceTooOldError():
                # The server applied the oldest block long ago, and has forgotten the keys.
                oldest, *others = self._pending.requests
                self._pending.replace(others)
                self._acknowledge(oldest)
            case WriterUnknownError() if self._begin_anew():
                pass
            case ReplayError():
                self._error = error
                self.is_paused = isinstance(error, ServerUnavailableError) or error.reason in _MAY_PASS
                self.has_failed = not self.is_paused
            case _:
                log.error("a writer of table %r failed", self._table.name, exc_info=error)
                self._error = InternalServerError(f"rows could not be sent, or the reply not be read: {error!r}")
                self.has_failed = True

    def _acknowledge(self, block: SentBlock) -> None:
        self.acknowledged += block.rows.count
        # After several attempts, the sender of an earlier stream may still be reading the block.
        if block.is_own and block.attempts == 1:
            block.rows.clear()
            self._spare.append(block.rows)

    def _begin_anew(self) -> bool:
        """Switch to a new writer id, after the server has forgotten an idle writer.

        Return False, and change nothing, if a pending block was also sent on an earlier stream. The server may have
        applied that block, so a new writer id could insert its rows twice.
        """
        if any(block.attempts > 1 for block in self._pending.requests):
            return False
        self._writer_id = secrets.token_bytes(SENDER_ID_BYTES)
        blocks = self._pending.requests
        self._pending.replace(
            [SentBlock(block.rows, self._head(number), block.is_own) for number, block in enumerate(blocks, 1)]
        )
        self.last_sequence = len(blocks)
        return True

    def _head(self, sequence: int) -> replay_pb2.WriteRequest:
        return replay_pb2.WriteRequest(
            table=self._table.name,
            table_uid=self._table.uid,
            writer_id=self._writer_id,
            insertion=replay_pb2.Insertion(sequence=sequence),
        )
