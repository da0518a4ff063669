"""Writes rows for actors: collects them in blocks and sends each row exactly once, in the background.

    with table.writer() as writer:
        for ...:
            writer.append(obs=obs, action=action, reward=reward, next_obs=next_obs, terminated=terminated)
            if terminated or truncated:
                writer.end_episode()
        writer.flush(timeout_s=10)      # wait for acknowledgement; leaving the block also does this

A writer can have several streams of experience, one for each environment of an actor. The streams share its connection
and its blocks:

    with table.writer(streams=8) as writer:
        writer[i].append(frame=frame, action=action, reward=reward)
        writer[i].end_episode(frame=final, terminated=True)     # values only if the table has steps
        writer.append_all(frame=frames, action=actions, reward=rewards)         # [8, ...]: a row for each stream
        writer.end_episodes(done, terminated=terminated, frame=finals)

`append` copies the row and returns. A block is sent when it is full, when `min_delay_s` (default: 0.1 s) have passed
since its first row, or when `flush` is called. A writer with one stream also sends it at the end of an episode. A
server with many writers asks them for larger blocks: they then send less often, but never later than `max_delay_s`
after a block's first row.

While ``max_blocks_in_flight`` blocks are unacknowledged, `append` waits. This happens if the server is slow or
unreachable, or if the table's rate limiter or full queue delays inserts.

When the connection breaks, the writer reconnects and resends unacknowledged rows; sequence numbers prevent duplicates.
A call raises only if the server is unreachable for `reconnect_timeout_s` or refuses rows. After
`ServerUnavailableError`, or if the server's disk is full, the next call retries; after any other error, the writer is
unusable. After each of these errors, `unacknowledged_rows` returns the rows that may not have arrived.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from numpy.typing import ArrayLike
from replay_proto.framing import Array

from replay_client._rows.block import RowBlock
from replay_client._rows.checks import merged
from replay_client._transport.connection import Connection
from replay_client._transport.data_path import DataPath
from replay_client._transport.unclosed import Lease
from replay_client._writing.delivery import Delivery
from replay_client._writing.handle import WriterHandle
from replay_client._writing.writer_stream import WriterStream
from replay_client._writing.writing import VectorRows, WriterOptions, Writing
from replay_client.errors import DeadlineExceededError, ReplayError
from replay_client.results.description import TableDescription

GIVE_UP_S: Final = 5.0
"""Seconds that the exit of a ``with`` block waits for acknowledgements after an error in the block."""


class Writer(WriterHandle[WriterStream]):
    """See the module. Thread-safe, but all threads share the current episodes."""

    def __init__(
        self,
        connection: Connection,
        table: TableDescription,
        options: WriterOptions,
        *,
        path: DataPath,
    ) -> None:
        """Created by `Table.writer`; the stream to the server opens when the first block is sent.

        ``path`` has the shortcuts to the table.
        """
        self._connection = connection
        self._delivery = Delivery(connection, table, options, path=path)
        lease = Lease(self._delivery)
        streams = [WriterStream(connection, self._delivery, each, lease) for each in range(options.streams)]
        super().__init__(connection, table, self._delivery.writing, streams)
        self._episodes = self._writing.episodes
        self._only = self._streams[0] if options.streams == 1 else None
        self._lock = self._delivery.lock

    @property
    def in_flight(self) -> int:
        """Number of appended rows that are not yet acknowledged."""
        with self._lock:
            return self._outbox.in_flight

    @property
    def inserted(self) -> int:
        """Rows ever inserted into the table by anyone, according to the last reply."""
        return self._outbox.inserted

    @property
    def is_failing(self) -> bool:
        """Whether the server does not answer at present; the writer keeps trying."""
        return self._writing.pending.is_failing or self._outbox.is_paused

    @property
    def is_table_gone(self) -> bool:
        """Whether the server no longer has the table, so that no more rows are sent."""
        return self._outbox.is_table_gone

    @property
    def shards_version(self) -> int:
        """Version of the server's shard map, according to the last reply; 0: there is none."""
        return self._outbox.shards_version

    @property
    def writing(self) -> Writing:
        """Checks the arguments of methods, and adds rows; internal."""
        return self._writing

    def append(
        self,
        row: Mapping[str, Any] | None = None,
        /,
        *,
        priority: float | None = None,
        steps_ago: int = 0,
        **columns: Any,
    ) -> None:
        """Append a row to the only stream; see `WriterStream.append`."""
        if self._only is None:
            self._refuse()
        values = columns if row is None else merged(row, columns)
        self._connection.check_not_forked()
        with self._lock:
            self._outbox.check()
            if not self._episodes.append(0, values, priority, steps_ago):
                self._delivery.wait_until(partial(self._episodes.append, 0, values, priority, steps_ago))

    def end_episode(
        self,
        row: Mapping[str, Any] | None = None,
        /,
        *,
        terminated: bool = False,
        priorities: ArrayLike | None = None,
        **columns: Any,
    ) -> None:
        """End the current episode of the only stream; see `WriterStream.end_episode`."""
        values = merged(row, columns)
        stream = self._only or self._refuse()
        stream.end_episode(values, terminated=terminated, priorities=priorities)

    def abandon_episode(self) -> None:
        """Stop the current episode of the only stream without closing it; see `WriterStream.abandon_episode`."""
        stream = self._only or self._refuse()
        stream.abandon_episode()

    def append_all(
        self,
        rows: Mapping[str, Any] | None = None,
        /,
        *,
        where: ArrayLike | None = None,
        priorities: ArrayLike | None = None,
        steps_ago: int = 0,
        **columns: Any,
    ) -> None:
        """Append one row to each stream; the values are copied.

        Args:
            rows: values by column, as an alternative to keyword arguments.
            where: bool[streams]: which streams get their row; None: all.
            priorities: float64[streams]: as for `WriterStream.append`; NaN where it is not known.
            steps_ago: as for `WriterStream.append`.
            **columns: values ``[streams, *shape]`` by column. Optional columns may be missing; to give them for some of
                the streams only, also give their masks.

        Raises:
            InvalidArgumentError: the rows do not match the table or the streams. No row was appended.
            ReplayError: an earlier row could not be sent. No row was appended. If there are more streams than rows in a
                block, rows of the first streams may have been appended; a note on the error says how many.
        """
        checked = self._writing.checked_rows(merged(rows, columns), where, priorities, steps_ago)
        try:
            self._append_checked(checked)
        except ReplayError as error:
            checked.note(error)
            raise

    def _append_checked(self, rows: VectorRows) -> None:
        """Append those of the rows that were not appended yet, and count them in ``rows``; internal."""
        self._connection.check_not_forked()
        with self._lock:
            self._outbox.check()
            self._writing.check_steps_ago(rows)
            while rows.left:
                if not self._writing.append_all(rows):
                    self._delivery.wait_until(partial(self._writing.append_all, rows))

    def end_episodes(
        self,
        done: ArrayLike,
        rows: Mapping[str, Any] | None = None,
        /,
        *,
        terminated: ArrayLike | None = None,
        **columns: Any,
    ) -> None:
        """End the current episodes of several streams.

        Args:
            done: bool[streams]: which episodes end.
            rows: final values by column, as an alternative to keyword arguments.
            terminated: bool[streams]: which of these episodes ended in a terminal state; the others were truncated.
                None: all were truncated.
            **columns: final values ``[streams, *shape]`` by column, as for `WriterStream.end_episode`.

        Raises:
            InvalidArgumentError: the values do not match the table or the streams. No episode was ended.
            ReplayError: an earlier row could not be sent. Some episodes may have ended; calling again ends the others.
        """
        ends = self._writing.checked_ends(done, merged(rows, columns), terminated)
        for end in ends:
            self._streams[end.stream].end_episode(end.values, terminated=end.is_terminated)

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all appended rows are acknowledged.

        Args:
            timeout_s: time limit in seconds. None: the client's default; 0: do not wait; `math.inf`: as long as the
                server is reachable.

        Raises:
            DeadlineExceededError: timed out; ``metadata`` says what the rows wait for. The writer keeps sending them.
            ReplayError: rows could not be sent.
        """
        began = time.monotonic()
        deadline = self._connection.deadline("timeout_s", timeout_s)
        try:
            self.flush_until(deadline)
        except DeadlineExceededError as error:
            if error.reason or deadline <= began:
                raise
            raise self._delivery.explained(error, round(deadline - began, 3)) from None

    def flush_until(self, deadline: float) -> None:
        """Flush like `flush`, but do not ask the server why it takes long; internal."""
        self._connection.check_not_forked()
        with self._lock:
            self._outbox.check()
            self._delivery.send(deadline)
            self._delivery.wait_for_all(deadline)

    def close(self, *, timeout_s: float | None = None) -> None:
        """Flush and close, with the time limit of `flush`. Idempotent; does nothing in a forked child.

        Raises:
            ReplayError: as for `flush`; the writer is closed anyway.
        """
        if self._connection.is_forked or self._outbox.is_closed:
            return
        try:
            self.flush(timeout_s=timeout_s)
        finally:
            self.abort()

    def abort(self) -> None:
        """Close without a flush; internal."""
        self._delivery.close()

    def _give_up(self) -> list[RowBlock]:
        """Close without a flush, and return all unacknowledged rows, oldest first, for `adopt`; internal."""
        self._delivery.close()
        with self._lock:
            return self._outbox.surrender()

    def _adopt(self, blocks: Iterable[RowBlock]) -> None:
        """Send rows that the writer of another shard of this table has given up; internal."""
        with self._lock:
            self._outbox.adopt(blocks)

    def unacknowledged_rows(self) -> dict[str, Array]:
        """Return unacknowledged rows, block by block, oldest first. Some of them may have arrived.

        Returns:
            The stored columns, ``dtype[n, *shape]``; in a table without steps, suitable for `Table.insert`.
        """
        with self._lock:
            return self._writing.unacknowledged_rows()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Flush and close. If the block raised an error, such as Ctrl-C, flush for at most `GIVE_UP_S`.

        If rows are still unacknowledged then, their number is logged as a warning, and the original error propagates.
        """
        try:
            self.close(timeout_s=None if error is None else GIVE_UP_S)
        except BaseException as failure:
            self._left(error, failure)
