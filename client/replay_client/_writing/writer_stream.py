"""One stream of experience of a writer; see `replay_client.writer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from replay_client._transport.connection import Connection
from replay_client._writing.delivery import Delivery
from replay_client._writing.episodes import Episodes


class WriterStream:
    """One stream of experience of a writer: an environment of an actor."""

    def __init__(self, connection: Connection, delivery: Delivery, episodes: Episodes, stream: int) -> None:
        """Created by the writer."""
        self._connection = connection
        self._delivery = delivery
        self._episodes = episodes
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
            priority: the absolute TD error, if known; None: the largest live priority. In a table of steps, that of the
                step whose window this row completes: n steps back (`Transitions`), or ``length - 1`` (`Sequences`).
            **columns: values ``[*shape]`` by column; nested observations as mappings or tuples.

        Raises:
            InvalidArgumentError: the row does not match the table, or completes no window that the priority is for.
            ReplayError: an earlier row could not be sent. This row was not appended.
        """
        self._connection.check_not_forked()
        with self._delivery.changed:
            self._delivery.check()
            self._episodes.append(self._stream, columns if row is None else {**row, **columns}, priority)

    def abandon_episode(self) -> None:
        """Leave the current episode without an end; later rows belong to the next one.

        In a table of steps, its last steps, whose windows are not complete, are never drawn.
        """
        with self._delivery.changed:
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

        In a table of steps, this appends the row that closes the episode, with the final observation. An episode
        without steps leaves no row. In a table without steps, give no values.

        Args:
            row: final values by column, as an alternative to keyword arguments.
            terminated: whether the final observation is a terminal state. False: the episode was truncated.
            priorities: float64[n]: of the steps whose windows this completes, oldest first: in `Transitions`, the last
                n steps, or all of a shorter episode. None: the largest live priority.
            **columns: final values by column. Required are those that a `Next` or a stack ahead shows; with
                `Sequences`, at least one. Others are zero.

        Raises:
            InvalidArgumentError: the values do not match the table.
            ReplayError: an earlier row could not be sent. The episode goes on.
        """
        values = columns if row is None else {**row, **columns}
        self._connection.check_not_forked()
        with self._delivery.changed:
            self._delivery.check()
            self._episodes.end(self._stream, values, terminated, priorities)
