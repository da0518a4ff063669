"""Adds rows to the episodes of a writer's streams: numbers their steps, and collects them in blocks for delivery.

    episodes = Episodes(table, connection, streams=8, ...)
    episodes.append(stream=3, values={"obs": obs, "action": 1}, priority=None)
    episodes.end(stream=3, values={"obs": final}, is_terminated=True, priorities=None)

A row may complete the windows of one or more anchors (see `replay_client._writing.streams`). The priorities of these
anchors are sent with the row. In one block, either all completed anchors have given priorities, or none has; when this
changes, a new block begins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_proto.framing import Array
from replay_proto.steps import Stack, Steps
from replay_proto.v1 import replay_pb2

from replay_client._rows.block import checked_priority
from replay_client._rows.checks import checked_priorities, flattened
from replay_client._writing.delivery import Delivery
from replay_client._writing.streams import Streams
from replay_client.errors import InvalidArgumentError, ReplayError
from replay_client.results.description import TableDescription


class Episodes:
    """See the module. Callers must hold the lock `Delivery.changed`, and call `Delivery.check` first."""

    def __init__(self, table: TableDescription, streams: Streams, delivery: Delivery) -> None:
        """Add rows to the block of ``delivery``, which must have the same streams."""
        self.streams = streams
        """Current episode and step of each stream."""
        self._schema = table.schema
        self._steps = table.steps
        self._needed_at_end = frozenset[str]() if table.steps is None else _needed_at_end(table.steps)
        self._is_transitions = table.steps is not None and not table.steps.is_sequences
        self._delivery = delivery

    def append(self, stream: int, values: Mapping[str, Any], priority: float | None) -> None:
        """Append a row to a stream; see `WriterStream.append`. Actors call this at every step, so it must be fast."""
        streams, block, has_priority = self.streams, self._delivery.block, priority is not None
        completes = self._steps is None or streams.completes(stream)
        if priority is not None:
            self._check_completes(stream, completes)
            priority = checked_priority(priority)
        while block.count == block.capacity or (completes and block.has_priorities is (not has_priority)):
            self._delivery.send(math.inf)
            block = self._delivery.block
        row = block.count
        block.add(values, stream)
        if block.run_of[stream] < 0:
            block.begin_run(stream, row, *streams.place(stream))
        if priority is not None:
            block.add_priorities((stream,), (priority,))
        elif completes:
            block.has_priorities = False
        if self._steps is not None:
            streams.next_steps[stream] += 1
        if block.count == 1 or block.count == block.capacity:
            self._delivery.added()

    def append_all(self, columns: Mapping[str, Array], which: NDArray[np.intp], priorities: Array | None) -> None:
        """Append the rows of some streams; see `Writer.append_all`.

        Args:
            columns: the result of `checked_rows`, with a row for every stream.
            which: int64[n]: the streams whose rows are appended.
            priorities: float64[streams], or None.
        """
        for first in range(0, len(which), self._delivery.block.capacity):
            try:
                self._append_part(columns, which[first : first + self._delivery.block.capacity], priorities)
            except ReplayError as error:
                if first:
                    error.add_note(f"the rows of the first {first} of {len(which)} streams were appended")
                raise

    def end(self, stream: int, values: Mapping[str, Any], is_terminated: bool, priorities: ArrayLike | None) -> None:
        """End the current episode of a stream; see `WriterStream.end_episode`."""
        if self._steps is None:
            if values or priorities is not None:
                expected = "no values and no priorities, because a table without steps stores no closing rows"
                raise InvalidArgumentError.of_field("columns", expected, ", ".join(values) or "priorities")
        elif self.streams.steps[stream]:
            self._close(stream, flattened(self._schema, values, is_partial=True), is_terminated, priorities)
        self.begin_episode(stream)
        if len(self.streams) == 1:
            self._delivery.send_if_possible()  # an actor with one environment may pause between episodes

    def begin_episode(self, stream: int) -> None:
        """Begin the next episode of a stream."""
        self.streams.begin_episode(stream)
        self._delivery.block.end_run(stream)

    def _append_part(self, columns: Mapping[str, Array], which: NDArray[np.intp], priorities: Array | None) -> None:
        streams = self.streams
        while True:
            block = self._delivery.block
            completing = which[streams.which_complete(which)]
            if block.room >= len(which) and (not len(completing) or block.accepts(priorities=priorities is not None)):
                break
            self._delivery.send(math.inf)
        given = None if priorities is None else checked_priorities(priorities[completing], len(completing)).tolist()
        row = block.count
        block.add_all(columns, which)
        for stream in block.without_run(which):
            block.begin_run(stream, row, *streams.place(stream))
        block.add_priorities(completing.tolist(), given)
        streams.steps[which] += 1
        self._delivery.added(len(which))

    def _close(self, stream: int, values: Mapping[str, Any], is_terminated: bool, priorities: ArrayLike | None) -> None:
        """Append the row that closes an episode."""
        streams = self.streams
        is_enough = values.keys() >= self._needed_at_end if self._is_transitions else bool(values)
        if not is_enough:
            expected = f"the final values of {', '.join(sorted(self._needed_at_end)) or 'at least one column'}"
            raise InvalidArgumentError.of_field("columns", expected, ", ".join(values) or "none")
        while True:
            block = self._delivery.block
            due = streams.completed_by_end(stream)
            if block.room and (not due or block.accepts(priorities=priorities is not None)):
                break
            self._delivery.send(math.inf)
        given = None if priorities is None else checked_priorities(priorities, due).tolist()
        end = replay_pb2.EPISODE_END_TERMINATED if is_terminated else replay_pb2.EPISODE_END_TRUNCATED
        row = block.count
        block.add_closing(values, stream)
        if block.run_of[stream] < 0:
            block.begin_run(stream, row, *streams.place(stream))
        block.end_run(stream, end)
        block.add_priorities([stream] * due, given)
        self._delivery.added()

    def _check_completes(self, stream: int, completes: bool) -> None:
        if not completes:
            _, step = self.streams.place(stream)
            raise InvalidArgumentError.of_field(
                "priority",
                f"none at step {step}, which completes no window (the priority is that of the anchor)",
                "one",
            )


def _needed_at_end(steps: Steps) -> frozenset[str]:
    """Return the columns that transitions take from the final observation."""
    return frozenset(column.of for column in steps.derived.values() if isinstance(column, Stack) and column.ahead)
