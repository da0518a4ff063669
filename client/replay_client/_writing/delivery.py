"""Delivers the blocks of a writer's outbox with threads.

    delivery = Delivery(connection, table, options, ...)
    with delivery.lock:
        delivery.writing.outbox.check()         # raises what went wrong
        if not delivery.writing.episodes.append(...):
            delivery.wait_until(lambda: delivery.writing.episodes.append(...))
        delivery.send(deadline)                 # sends the current block now
        delivery.wait_for_all(deadline)

A background thread processes acknowledgements, reconnects, and sends unacknowledged blocks again. If it meets an error,
the next call raises it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Final

from replay_client._transport.answered_stream import AnsweredStream
from replay_client._transport.call import left_s
from replay_client._transport.connection import Connection
from replay_client._transport.data_path import DataPath
from replay_client._transport.interrupts import wait_for_change
from replay_client._transport.long_waits import FOR_INSERTS, LongWait, explained, too_late
from replay_client._transport.unclosed import finish_at_exit, finish_in_thread
from replay_client._writing.writing import WriterOptions, Writing
from replay_client.errors import DeadlineExceededError, ServerUnavailableError
from replay_client.results.description import TableDescription

log = logging.getLogger(__name__)

_AWAY_POLL_S: Final = 0.05
"""Seconds between checks whether the server is away, in calls that do not wait while it is."""


class Delivery:
    """See the module. Callers of all methods except `close` must hold `lock`, which guards `writing`."""

    def __init__(
        self,
        connection: Connection,
        table: TableDescription,
        options: WriterOptions,
        *,
        path: DataPath,
    ) -> None:
        """Prepare to connect when the first block is sent.

        ``path`` has the shortcuts to the table.
        """
        self._connection = connection
        self._waits_while_away = options.waits_while_away
        self.writing = Writing(table, options, timeout_s=connection.timeout_s, wake=self._wake)
        self._outbox = self.writing.outbox
        self._stream = AnsweredStream(
            connection,
            "Write",
            self.writing.pending,
            before_waiting=self._outbox.due_in_s,
            path=path,
            sends_in_background=True,
        )
        self.lock = self._stream.lock
        """Guards all state."""
        self._changed = self._stream.changed
        self._receiver: threading.Thread | None = None
        connection.works.add(self)
        finish_at_exit(self)

    @property
    def title(self) -> str:
        """See `Work`."""
        return f"writer of table {self._outbox.name!r} at {self._connection.address}"

    @property
    def is_done(self) -> bool:
        """See `Work`."""
        has_begun = self._receiver is not None or self._outbox.in_flight
        return not has_begun or self._outbox.is_closed or self._connection.is_forked

    def wait_until(self, holds: Callable[[], bool], deadline: float = math.inf) -> None:
        """Wait until this holds, and say so in the log if it takes long. Raises the errors of `wait_for_all`."""
        with LongWait(f"a {self.title} with {self._outbox.in_flight:,} unacknowledged rows", self._explain):
            while not holds():
                self.wait(deadline)

    def explained(self, refusal: DeadlineExceededError, waited_s: float) -> DeadlineExceededError:
        """Add to the error of a time limit what the rows wait for. Asks the server: call this without the lock."""
        return too_late(
            refusal, self._outbox.name, waited_s, self._connection.first_wait(self._outbox.name, FOR_INSERTS)
        )

    def _explain(self, waited_s: float) -> str:
        found = self._connection.first_wait(self._outbox.name, FOR_INSERTS)
        return explained(self._outbox.name, waited_s, found)

    def send(self, deadline: float) -> None:
        """Send the current block; wait first if too many blocks are in flight. Raises the errors of `wait_for_all`."""
        if not self._outbox.hand_over():
            self.wait_until(self._outbox.hand_over, deadline)

    def wait_for_all(self, deadline: float) -> None:
        """Wait until all blocks sent so far are acknowledged, or raise `DeadlineExceededError` or a row's refusal."""
        last = self._outbox.last_sequence
        if not self._outbox.has_acknowledged(last):
            self.wait_until(lambda: self._outbox.has_acknowledged(last), deadline)

    def wait(self, deadline: float) -> None:
        """Wait for a change. Raises the errors of `wait_for_all`."""
        left = left_s(deadline)
        if left == 0:
            raise self._outbox.too_late()
        if not self._waits_while_away:
            if self.writing.pending.is_failing:
                raise ServerUnavailableError("the server is away; an open writer keeps sending the rows")
            left = _AWAY_POLL_S if left is None else min(left, _AWAY_POLL_S)
        wait_for_change(self._changed, left)
        self._outbox.check()

    def dropped(self) -> None:
        """See `Work`."""
        finish_in_thread(self)

    def deliver(self, deadline: float) -> None:
        """Deliver the rows of a writer that was not closed; see `Work`."""
        outbox = self._outbox
        with self.lock:
            outbox.resume()
            while outbox.in_flight and not outbox.has_failed and not outbox.is_closed:
                outbox.hand_over()
                if (left := left_s(deadline)) == 0:
                    return
                wait_for_change(self._changed, left)

    def finish(self, deadline: float) -> None:
        """See `Work`."""
        if self.is_done:
            return
        self.deliver(deadline)
        self.close()
        with self.lock:
            self._outbox.log_lost()

    def close(self) -> None:
        """Stop sending, and wait for the background thread to end."""
        with self.lock:
            self._outbox.close()
        self._stream.close()
        if self._receiver is not None:
            self._receiver.join()

    def _wake(self) -> None:
        """Wake up all threads, and start the background thread once there are rows to deliver."""
        if self._receiver is None and self._outbox.in_flight and not self._outbox.is_closed:
            # Ctrl-C may keep it from running, so there is another one at each change until one does.
            receive = partial(copy_context().run, self._receive_all)
            threading.Thread(target=receive, name="replay-writer", daemon=True).start()
        self._stream.notify()

    def _receive_all(self) -> None:
        """Process acknowledgements until the writer is closed or fails; runs in a background thread."""
        outbox = self._outbox
        with self.lock:
            if self._receiver is not None or outbox.is_closed:
                return
            self._receiver = threading.current_thread()
        while not outbox.has_failed:
            try:
                block, answer = self._stream.receive()
                with self.lock:
                    outbox.answered(block, answer)
                    self._stream.notify()
            except Exception as error:
                with self.lock:
                    outbox.failed(error)
                    self._stream.notify()
                    while outbox.is_paused and not outbox.is_closed:
                        self._changed.wait()
