"""One stream of experience of a writer; see `replay_client.sync.writer`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from numpy.typing import ArrayLike

from replay_client._rows.checks import merged, not_a_row
from replay_client._transport.connection import Connection
from replay_client._transport.unclosed import Lease
from replay_client._writing.delivery import Delivery


class WriterStream:
    """One stream of experience of a writer, such as one environment of an actor."""

    def __init__(self, connection: Connection, delivery: Delivery, stream: int, lease: Lease) -> None:
        """Created by the writer, which shares its lease on the delivery."""
        self._lease = lease
        self._connection = connection
        self._delivery = delivery
        self._episodes = delivery.writing.episodes
        self._stream = stream

    @property
    def number(self) -> int:
        """uint64: random number of this stream, stored with every row."""
        return int(self._episodes.streams.numbers[self._stream])

    @property
    def episode(self) -> int:
        """Number of the current episode in the stream, stored with every row."""
        return int(self._episodes.streams.episodes[self._stream])

    def append(self, row: Mapping[str, Any] | None = None, /, *, priority: float | None = None, **columns: Any) -> None:
        """Append a copy of a row to the current episode. Waits only if too many blocks are in flight.

        Args:
            row: values by column, as an alternative to keyword arguments (a column may be named ``priority``).
            priority: the absolute TD error, if known; None: the largest live priority. In a table of steps, this is the
                priority of the anchor whose window this row completes: the step n steps earlier (`Transitions`), or
                ``length`` steps earlier (`Sequences`).
            **columns: values ``[*shape]`` by column; nested observations as mappings or tuples. Optional columns may
                be missing or None.

        Raises:
            InvalidArgumentError: the row does not match the table, or a priority is given although the row completes no
                window.
            ReplayError: an earlier row could not be sent. This row was not appended.
        """
        try:
            values = columns if row is None else {**row, **columns}
        except TypeError:  # this path is hot, so `merged` is not called
            raise not_a_row(row) from None
        self._connection.check_not_forked()
        with self._delivery.lock:
            self._delivery.writing.outbox.check()
            if not self._episodes.append(self._stream, values, priority):
                self._delivery.wait_until(partial(self._episodes.append, self._stream, values, priority))

    def abandon_episode(self) -> None:
        """Stop the current episode without closing it; later rows belong to the next one.

        In a table of steps, the last steps of the episode have incomplete windows, so they are never drawn.
        """
        with self._delivery.lock:
            self._episodes.begin_episode(self._stream)

    def end_episode(
        self,
        row: Mapping[str, Any] | None = None,
        /,
        *,
        terminated: bool = False,
        priorities: ArrayLike | None = None,
        **columns: Any,
    ) -> None:
        """End the current episode; later rows belong to the next one.

        In a table of steps, this appends the row that closes the episode, with the final observation; if the episode
        has no steps, it appends nothing. In other tables, give no values, and store `terminated` in a column.

        Args:
            row: final values by column, as an alternative to keyword arguments.
            terminated: whether the final observation is a terminal state. False: the episode was truncated.
            priorities: float64[n]: priorities of the steps whose windows this row completes, oldest first. With
                `Transitions`, these are the last n steps, or all steps of a shorter episode. None: the largest live
                priority.
            **columns: final values by column. With `Transitions`, the sources of `Next` and of stacks with
                ``ahead=True`` are required. With `Sequences`, at least one column is required. Other columns are set to
                zero.

        Raises:
            InvalidArgumentError: the values do not match the table, or `terminated` is neither a bool nor 0 or 1.
            ReplayError: an earlier row could not be sent. The episode has not ended.
        """
        values = merged(row, columns)
        self._connection.check_not_forked()
        with self._delivery.lock:
            self._delivery.writing.outbox.check()
            if not self._episodes.end(self._stream, values, terminated, priorities):
                self._delivery.wait_until(partial(self._episodes.end, self._stream, values, terminated, priorities))
