"""Composes the messages of a learner's stream and processes the replies, without I/O, threads or clocks.

    learning = Learning(table, draw, reader, near, prefetch=3)
    learning.update(batch, td_errors)               # kept for the next request
    learning.ask()                                  # adds requests for batches to `learning.pending`
    learning.answered(request, answer)              # a reply came
    learning.batches                                # what has arrived

`replay_client.sync.sampler` explains how updates and draws are ordered.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_proto.frames import Content
from replay_proto.framing import Array
from replay_proto.v1 import replay_pb2

from replay_client._learning.answers import BatchReader
from replay_client._learning.combining import combined
from replay_client._learning.prefetch import FEWEST, MOST, FixedPrefetch, PrefetchTuner, prefetching
from replay_client._rows.checks import checked_keys, checked_priorities, packed_update, update_parts
from replay_client._rows.columns import BatchOrKeys
from replay_client._rows.mapped_rows import MappedRows, NearRows
from replay_client._transport.pending import PendingRequests, Request
from replay_client._transport.request_ids import SENDER_ID_BYTES
from replay_client.batch import Batch
from replay_client.draws import Prefetch, with_beta
from replay_client.errors import DeadlineExceededError, ReplayError
from replay_client.results.description import FIFO, MOST_KEYS_AT_ONCE, TableDescription

_MESSAGES_IN_FLIGHT: Final = 4
"""Desired number of messages in flight: with a larger prefetch, one message requests several batches."""
_LARGE_PREFETCH: Final = 64
"""With this prefetch or a larger one, two messages are in flight, because each message costs time beside the learner:
the caches of the CPU no longer have what the server and the client need for it."""
_MOST_TOGETHER: Final = 64
"""Maximum batches per message: the server handles no other call while it draws them."""
_MOST_ROWS: Final = 1 << 15
"""Maximum rows of small windows per message. The server draws them in 4 ms."""
_ROWS_BYTES: Final = 4 << 20
"""Maximum bytes of these rows. With larger rows, `MOST_KEYS_AT_ONCE` limits them."""
_MOST_DISTINCT: Final = 4
"""The same without replacement: the server's limit."""
OF_DRAWS: Final = frozenset({"LIMITED", "TABLE_EMPTY", "TABLE_RESET", "WAITED_TOO_LONG"})
"""Reasons for which a draw is refused after a wait, when the server has already applied the updates of the message."""
DRAWS_WAIT_S: Final = 0.25
"""Seconds after which a sampler that is closed no longer waits for draws before its last updates."""


@dataclass
class Charges:
    """Samples that a learner charges to a shard's rate limiter."""

    due: int = 0
    """For the next request. A negative number gives samples back."""
    asked: int = 0
    """In requests without a reply."""
    granted: int = 0
    """Granted, according to the replies."""


@dataclass(kw_only=True)
class Exchange(Request):
    """A learner's message and the expected reply, with the bookkeeping of both."""

    message: bytes
    draw: replay_pb2.Draw
    mapped: MappedRows | None = None
    """Copies the rows that the reply omits."""
    has_update: bool = False
    batches: int = 0
    charge: int = 0
    charges: Charges
    """The account of `charge`."""
    sequence: int = 0
    """Number of a draw from a queue; 0 for other messages."""
    asked_for: Any = None
    """What the reply is for, in terms of the caller of `Learning.ask_for`."""

    def parts(self) -> Sequence[bytes]:
        """The learner's message."""
        return (self.message,)

    def answered(self, head: replay_pb2.LearnResponse) -> None:
        """End the exchange with a reply."""
        self.charges.asked -= self.charge
        self.charges.granted += head.charged

    def refused(self, error: ReplayError) -> Exchange | None:
        """End the exchange without a reply. The refusal of a draw does not tell whether the updates were applied."""
        self.charges.asked -= self.charge
        return self._only_update() if error.reason in OF_DRAWS else None

    def without_draw(self) -> Exchange | None:
        """Return an exchange with only the updates; None if there are none."""
        return self._only_update() if self.batches or not self.has_update else self

    def _only_update(self) -> Exchange | None:
        if not self.has_update:
            return None
        sent = replay_pb2.LearnRequest.FromString(self.message)
        left = replay_pb2.LearnRequest(table=sent.table, table_uid=sent.table_uid, update=sent.update)
        return Exchange(message=left.SerializeToString(), draw=self.draw, has_update=True, charges=self.charges)


class Learning:
    """See the module."""

    def __init__(
        self,
        table: TableDescription,
        draw: replay_pb2.Draw,
        reader: BatchReader,
        near: NearRows,
        *,
        prefetch: Prefetch,
        reconnect_timeout_s: float,
    ) -> None:
        self._table = table
        self._window_rows = 1 if table.steps is None else table.steps.window.rows
        self._most_rows = table.limited(max(MOST_KEYS_AT_ONCE, min(_MOST_ROWS, _ROWS_BYTES // table.row_bytes)))
        self._most_kept = table.keys_per_call  # keys; with more, updates are sent without waiting for a request
        self._near = near
        self.prefetching: FixedPrefetch | PrefetchTuner
        """Chooses `prefetch`; samplers tell it about each step."""
        self.prefetch = prefetch
        self.pending: PendingRequests[Exchange] = PendingRequests(
            reconnect_timeout_s=reconnect_timeout_s, keep_refused=False
        )
        """Messages without a reply."""
        self.batches: deque[Batch | replay_pb2.Draw] = deque()
        """Batches that have arrived, oldest first. If inserts overwrote the rows of a batch before they were copied,
        its draw takes its place. The draw must then be repeated, with the rows in the reply."""
        self.updated = 0
        """Number of rows updated so far, according to the replies."""
        self.stale = 0
        """Number of stale keys so far, according to the replies."""
        self.draw = draw
        """What is drawn in future requests."""
        self.state: replay_pb2.TableState | None = None
        """The table's state from the latest reply that had one; `ask_for` requests it. None before the first."""
        self.others_largest: float | None = None
        """Largest priority in the other shards of a distributed table, for future requests; None: do not send it."""
        self.charges = Charges()
        """Samples charged to a shard's rate limiter."""
        self._reader_id = secrets.token_bytes(SENDER_ID_BYTES) if table.backend == FIFO else b""
        self._sequence = 0  # of the newest draw from a queue
        self._received = 0  # of the newest one that was answered
        self._others_largest_sent: float | None = None
        self._reader = reader
        self._keys: list[bytes] = []
        self._priorities: list[bytes] = []
        self._keys_kept = 0

    @property
    def beta(self) -> float:
        """Exponent of the weights in future requests."""
        return self.draw.beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self.draw = with_beta(self.draw, beta)

    @property
    def prefetch(self) -> int:
        """Number of batches in flight after `ask`, at least 1. May be set to "auto"."""
        return self.prefetching.prefetch

    @prefetch.setter
    def prefetch(self, prefetch: Prefetch) -> None:
        # A rate limiter or queue counts batches in flight as drawn, so more of them would not arrive earlier.
        is_limited = self._table.backend == FIFO or self._table.rate_limit is not None
        self.prefetching = prefetching(prefetch, FEWEST if is_limited else MOST)

    @property
    def in_flight(self) -> int:
        """Batches requested but not yet taken from `batches`."""
        pending = tuple(self.pending.requests)  # another thread may be at work
        return len(self.batches) + sum(exchange.batches for exchange in pending)

    @property
    def unacknowledged(self) -> int:
        """Number of messages with unacknowledged updates. All kept updates count as one message."""
        return bool(self._keys) + sum(exchange.has_update for exchange in tuple(self.pending.requests))

    def ask(self) -> None:
        """Add requests until `prefetch` batches are in flight. The first request carries the kept updates."""
        is_distinct = self.draw.draw_mode == replay_pb2.DRAW_MODE_WITHOUT_REPLACEMENT
        limit = _MOST_DISTINCT if is_distinct else _MOST_TOGETHER
        most = min(limit, self._most_rows // (self.draw.batch_size * self._window_rows))
        prefetch, in_flight = self.prefetch, self.in_flight
        messages = _MESSAGES_IN_FLIGHT if prefetch < _LARGE_PREFETCH else 2
        together = max(1, min(most, prefetch // messages))
        while (missing := prefetch - in_flight) >= together:
            self._add(min(missing, together), ahead=in_flight)
            in_flight += min(missing, together)
        if together == 1:  # otherwise, updates wait for the next request
            self.send_updates()  # only after an error while batches were in flight

    def ask_for(self, draw: replay_pb2.Draw | None, *, asked_for: Any = None) -> None:
        """Add a request for the table's state.

        If ``draw`` is given, the request also asks for one batch, which `prefetch` does not limit. It carries the kept
        updates. ``asked_for`` becomes `Exchange.asked_for`.
        """
        exchange = self._add(0 if draw is None else 1, draw, wants_state=True)
        exchange.asked_for = asked_for

    @property
    def is_near(self) -> bool:
        """Whether the server is on this host, and rows are copied from its files."""
        return self._near.mapped is not None

    @property
    def has_kept(self) -> bool:
        """Whether anything is kept for the next request: updates, a charge, or the other shards' largest priority."""
        return bool(self._keys) or bool(self.charges.due) or self.others_largest != self._others_largest_sent

    def unacknowledged_updates(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the keys int64[n] and priorities float64[n] of updates without a reply, oldest first."""
        updates = [replay_pb2.LearnRequest.FromString(each.message).update for each in self.pending.requests]
        keys = b"".join([*(update.keys for update in updates), *self._keys])
        priorities = b"".join([*(update.priorities for update in updates), *self._priorities])
        return np.frombuffer(keys, "<i8"), np.frombuffer(priorities, "<f8")

    def update(self, batch_or_keys: BatchOrKeys, priorities: ArrayLike) -> None:
        """Keep updates for the next request. If there are too many, add requests for them."""
        checked = checked_keys(batch_or_keys)
        values = combined(batch_or_keys, priorities, self._table.steps)
        self.keep(checked, checked_priorities(values, len(checked)))

    def keep(self, checked: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Keep updates like `update`, but without checks of the keys, int64[n], and priorities, float64[n]."""
        for first in range(0, len(checked), self._most_kept):
            keys, priorities = checked[first : first + self._most_kept], values[first : first + self._most_kept]
            if self._keys_kept + len(keys) > self._most_kept:
                self.send_updates()
            self._priorities.append(priorities.tobytes())
            self._keys.append(keys.tobytes())
            self._keys_kept += len(keys)
        if self._keys_kept >= self._most_kept:
            self.send_updates()

    def write(self, keys: NDArray[np.int64], columns: Mapping[str, Array]) -> None:
        """Add requests that write mutable columns again, and carry the kept updates; see `checked_update`."""
        for update, rows in update_parts(self._table.schema, keys, columns, self._table.keys_per_call):
            self._add(0, rows=(update, rows))

    def send_updates(self) -> None:
        """Add a request with the kept updates, if any."""
        if self._keys:
            self._add(0)

    def drop_draws(self) -> None:
        """Replace all requests by their updates, which need not wait for draws then. Call only without a stream."""
        left = [exchange.without_draw() for exchange in self.pending.requests]
        self.pending.replace(exchange for exchange in left if exchange is not None)

    def answered(self, exchange: Exchange, answer: Content) -> replay_pb2.LearnResponse:
        """Process the reply to a request that was just removed from `pending`. Return the reply without its rows."""
        head, batches = self._reader.learned(answer, exchange.draw, exchange.mapped)
        self.updated += head.update.updated + head.row_update.updated
        self.stale += head.update.stale + head.row_update.stale
        exchange.answered(head)
        self._received = exchange.sequence or self._received
        if head.HasField("state"):
            self.state = head.state
        self.batches.extend(exchange.draw if batch is None else batch for batch in batches)
        return head

    def too_late(self) -> DeadlineExceededError:
        """Return the error of a call that has waited for acknowledgements for too long."""
        return DeadlineExceededError(
            f"{self.unacknowledged} updates of table {self._table.name!r} were not acknowledged in time"
        )

    def _add(
        self,
        batches: int,
        draw: replay_pb2.Draw | None = None,
        *,
        ahead: int = 0,
        wants_state: bool = False,
        rows: tuple[replay_pb2.RowUpdate, Mapping[str, Array]] | None = None,
    ) -> Exchange:
        """Add a request for ``batches`` batches, with the kept updates.

        ``draw`` describes the batches; if it is None, the attribute `draw` does. ``ahead`` is the number of batches
        that are already in flight. ``rows`` is one of `update_parts`.
        """
        draw = draw or self.draw
        request = replay_pb2.LearnRequest(table=self._table.name, table_uid=self._table.uid)
        mapped = self._near.mapped if batches else None
        has_update = bool(self._keys)
        sequence = 0
        if has_update:
            request.update.keys = b"".join(self._keys)
            request.update.priorities = b"".join(self._priorities)
        if self.others_largest != self._others_largest_sent:
            self._others_largest_sent = self.others_largest
            request.update.others_largest = self.others_largest or 0.0
            has_update = True
        if wants_state:
            request.wants_state = True
        if batches:
            request.draw.CopyFrom(draw)
            request.batches = batches
            request.ahead = ahead
            if mapped is not None:
                request.same_host.CopyFrom(mapped.request)
            if self._reader_id:
                self._sequence = sequence = self._sequence + 1
                request.reader.reader_id = self._reader_id
                request.reader.sequence, request.reader.received = sequence, self._received
        charge, self.charges.due = self.charges.due, 0
        if charge:
            request.charge, request.refund = max(charge, 0), max(-charge, 0)
            self.charges.asked += charge
        if rows is None:
            message = request.SerializeToString()
        else:
            request.row_update.CopyFrom(rows[0])
            message, has_update = packed_update(request, self._table.schema, rows[1]), True
        exchange = Exchange(
            message=message,
            draw=draw,
            mapped=mapped,
            has_update=has_update,
            batches=batches,
            charge=charge,
            charges=self.charges,
            sequence=sequence,
        )
        self.pending.add(exchange)
        self._keys.clear()  # not earlier: another thread may read `unacknowledged`
        self._priorities.clear()
        self._keys_kept = 0
        return exchange
