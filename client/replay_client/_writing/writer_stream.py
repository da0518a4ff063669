"""One stream of experience of a writer; see `replay_client.sync.writer`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from numpy.typing import ArrayLike

from replay_client._rows.checks import merged
from replay_client._transport.connection import Connection
from replay_client._transport.unclosed import Lease
from replay_client._writing.delivery import Delivery
from replay_client._writing.handle import StreamHandle


class WriterStream(StreamHandle):
    """One stream of experience of a writer, such as one environment of an actor."""

    def __init__(self, connection: Connection, delivery: Delivery, stream: int, lease: Lease) -> None:
        """Created by the writer, which shares its lease on the delivery."""
        super().__init__(delivery.writing, stream)
        self._lease = lease
        self._connection = connection
        self._delivery = delivery

    def append(
        self,
        row: Mapping[str, Any] | None = None,
        /,
        *,
        priority: float | None = None,
        steps_ago: int = 0,
        **columns: Any,
    ) -> None:
        """Append a copy of a row to the current episode. Waits only if too many blocks are in flight.

        Args:
            row: values by column, as an alternative to keyword arguments (a column may be named ``priority``).
            priority: the absolute TD error of this step, if known; None: the largest live priority. In a table of
                steps, a transition has the priority of its first step. A sequence combines those of its steps from the
                anchor on (`Sequences.eta`); steps without a priority do not count.
            steps_ago: the priority is that of the step so many steps earlier in the episode, for an actor that knows
                the error of an n-step return only n steps later. At most the rows of a window after its anchor.
            **columns: values ``[*shape]`` by column; nested observations as mappings or tuples. Optional columns may
                be missing or None.

        Raises:
            InvalidArgumentError: the row does not match the table; or the priority is that of a step that is not in
                this episode, or whose windows are complete.
            ReplayError: an earlier row could not be sent. This row was not appended.
        """
        values = columns if row is None else merged(row, columns)
        self._connection.check_not_forked()
        with self._delivery.lock:
            self._delivery.writing.outbox.check()
            if not self._episodes.append(self._stream, values, priority, steps_ago):
                self._delivery.wait_until(partial(self._episodes.append, self._stream, values, priority, steps_ago))

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
            priorities: float64[n]: priorities of the last n steps, oldest first, in place of those given before; at
                most the rows of a window after its anchor. None: those given before or, without any, the largest live
                priority. A window without a priority gets the largest of those that end with it.
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
