"""Adds rows to the episodes of a writer's streams: numbers their steps, and collects them in blocks for delivery.

    episodes = Episodes(table, streams, outbox)
    while not episodes.append(stream=3, values={"obs": obs, "action": 1}, priority=None, steps_ago=0):
        ...                                     # wait until fewer blocks are in flight
    while not episodes.end(stream=3, values={"obs": final}, is_terminated=True, priorities=None):
        ...

A row may complete the windows of one or more anchors (see `Streams`). The priorities of these windows are sent with
the row; they follow from the priorities that the caller gave to their steps. A block must not mix windows with
priorities and others, so a row may need a new block. There is no I/O: if a row needs a new block while too many blocks
are in flight, the caller waits and tries again.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_proto.framing import Array
from replay_proto.schema import Column
from replay_proto.steps import Stack, Steps, WindowShape
from replay_proto.v1 import replay_pb2

from replay_client._rows.block import checked_priority
from replay_client._rows.checks import checked_array, checked_flags, checked_priorities, checked_row, flattened
from replay_client._writing.outbox import Outbox
from replay_client._writing.step_priorities import StepPriorities
from replay_client.errors import InvalidArgumentError
from replay_client.results.description import TableDescription

_STREAM_BITS = 64
_ROWS = WindowShape(forward=0, backward=0)
_PRIORITIES = Column("float64")


class Streams:
    """The current episode and step of each stream of a writer, and which anchors the next rows complete.

    In a table of steps, an anchor is complete once all rows of its window have been appended: ``forward`` steps later,
    or when the episode ends. In other tables, every row is an anchor and is complete immediately.
    """

    def __init__(self, count: int, window: WindowShape | None) -> None:
        """Begin an episode in each of ``count`` streams; ``window`` is None unless the table is a table of steps."""
        self.numbers = np.array([secrets.randbits(_STREAM_BITS) or 1 for _ in range(count)], np.uint64)
        """uint64[count]: random number of each stream, stored with its rows."""
        self.episodes = np.zeros(count, np.uint64)
        """uint64[count]: number of each stream's current episode, stored with its rows."""
        self.steps = np.zeros(count, np.int64)
        """int64[count]: number of each stream's next step in that episode."""
        self.next_steps = self.steps.data
        """A view of `steps`, faster for single values."""
        self._next_episodes = self.episodes.data
        self.forward, _, self.period = window or _ROWS

    def __len__(self) -> int:
        return len(self.numbers)

    def place(self, stream: int) -> tuple[int, int]:
        """Return the numbers of a stream's current episode and next step."""
        return self._next_episodes[stream], self.next_steps[stream]

    def completes(self, stream: int) -> bool:
        """Whether the next step of a stream completes the window of an anchor, ``forward`` steps earlier."""
        anchor: int = self.next_steps[stream] - self.forward
        return anchor >= 0 and anchor % self.period == 0

    def which_complete(self, streams: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return the result of `completes` for each of these streams, bool[n]."""
        anchors = self.steps[streams] - self.forward
        complete: NDArray[np.bool_] = (anchors >= 0) & (anchors % self.period == 0)
        return complete

    def completed_by_end(self, stream: int) -> range:
        """Return the anchors whose windows would be complete if a row closed the stream's current episode now."""
        end, period = self.next_steps[stream], self.period
        first = max(0, end - self.forward)
        return range(-(-first // period) * period, end, period)

    def begin_episode(self, stream: int) -> None:
        """Begin the next episode of a stream."""
        self._next_episodes[stream] += 1
        self.next_steps[stream] = 0


class Episodes:
    """See the module. Call `Outbox.check` before each method."""

    def __init__(self, table: TableDescription, streams: Streams, outbox: Outbox) -> None:
        """Add rows to the block of ``outbox``, which must have the same streams."""
        self.streams = streams
        """Current episode and step of each stream."""
        self._schema = table.schema
        self._steps = table.steps
        self._needed_at_end = frozenset[str]() if table.steps is None else _needed_at_end(table.steps)
        self._is_transitions = table.steps is not None and not table.steps.is_sequences
        self._outbox = outbox
        self._priorities = None if table.steps is None else StepPriorities(len(streams), table.steps.item)

    def append(self, stream: int, values: Mapping[str, Any], priority: float | None, steps_ago: int = 0) -> bool:
        """Append a row to a stream; see `WriterStream.append`. Actors call this at every step, so it must be fast.

        Returns:
            False if too many blocks are in flight; then nothing has changed.
        """
        outbox, streams, given = self._outbox, self.streams, self._priorities
        if outbox.is_changing or outbox.was_torn:
            self._begin_anew()
        block = outbox.block
        completes = self._steps is None or streams.completes(stream)
        before: Sequence[float | None] = ()
        if priority is not None:
            priority = checked_priority(priority)
            before = self._give((stream,), (priority,), steps_ago)
        if given is not None and completes:
            anchor = streams.next_steps[stream] - streams.forward
            priority = given.of_window(stream, anchor) if given.are_used else None
        if block.count == block.capacity or (completes and block.has_priorities is (priority is None)):
            if not outbox.hand_over():
                if before:
                    self._take_back((stream,), steps_ago, before)
                return False
            block = outbox.block
        row = block.count
        outbox.is_changing = True
        try:
            block.add(values, stream)
        except Exception:
            outbox.is_changing = False
            if before:
                self._take_back((stream,), steps_ago, before)
            raise
        if block.run_of[stream] < 0:
            block.begin_run(stream, row, *streams.place(stream))
        if completes and priority is not None:
            block.add_priorities((stream,), (priority,))
        elif completes:
            block.has_priorities = False
        if given is not None:
            streams.next_steps[stream] += 1
            if given.are_used:
                given.forget(stream, streams.next_steps[stream] - streams.forward)
        outbox.is_changing = False
        if block.count == 1 or block.count == block.capacity:
            outbox.added()
        return True

    def append_all(
        self, columns: Mapping[str, Array], which: NDArray[np.intp], priorities: Array | None, steps_ago: int = 0
    ) -> int:
        """Append the rows of some streams; see `Writer.append_all`. ``columns`` have a row for every stream.

        Rows are appended for the streams ``which``, int64[n]. The priorities, float64[streams], are NaN where they are
        not known. Return the number of rows that were appended, which are those of the first streams. It is at most the
        capacity of a block, and 0 if too many blocks are in flight.
        """
        outbox, streams = self._outbox, self.streams
        if outbox.is_changing or outbox.was_torn:
            self._begin_anew()
        which = which[: outbox.block.capacity]
        before: list[float | None] = []
        known_of: list[int] = []
        if priorities is not None:
            known_of = which[~np.isnan(priorities[which])].tolist()
            before = self._give(known_of, priorities[known_of].tolist(), steps_ago)
        completing = which[streams.which_complete(which)]
        has_none = priorities is None and (self._priorities is None or not self._priorities.are_used)
        known = [] if has_none else self._known(completing.tolist(), priorities)
        is_given = bool(known) and known[0] is not None
        if known and any((each is not None) is not is_given for each in known):
            # Windows with priorities and others do not fit into one block.
            alike = next(place for place, each in enumerate(known) if (each is not None) is not is_given)
            which = which[: which.tolist().index(completing[alike])]
            completing, known = completing[:alike], known[:alike]
            kept = np.isin(known_of, which).sum()
            self._take_back(known_of[kept:], steps_ago, before[kept:])
            del known_of[kept:], before[kept:]
        block = outbox.block
        if block.room < len(which) or (len(completing) and not block.accepts(priorities=is_given)):
            if not outbox.hand_over():
                self._take_back(known_of, steps_ago, before)
                return 0
            block = outbox.block
        row = block.count
        outbox.is_changing = True
        block.add_all(columns, which)
        for stream in block.without_run(which):
            block.begin_run(stream, row, *streams.place(stream))
        block.add_priorities(completing.tolist(), [each for each in known if each is not None] if is_given else None)
        streams.steps[which] += 1
        if not has_none:
            self._forget(which.tolist())
        outbox.is_changing = False
        outbox.added(len(which))
        return len(which)

    def _known(self, completing: list[int], priorities: Array | None) -> list[float | None]:
        """Return the priorities of the windows that the next rows of these streams complete."""
        if self._priorities is None:
            given = [] if priorities is None else priorities[completing].tolist()
            return [None if math.isnan(each) else each for each in given]
        anchors = [self.streams.next_steps[stream] - self.streams.forward for stream in completing]
        return list(map(self._priorities.of_window, completing, anchors))

    def check_steps_ago(self, streams: Sequence[int], steps_ago: int) -> None:
        """Check that each stream has a step so many steps before its next one, in a window that is not complete."""
        most = min([self.streams.forward, *(self.streams.next_steps[stream] for stream in streams)])
        if isinstance(steps_ago, bool) or not isinstance(steps_ago, int) or not 0 <= steps_ago <= most:
            expected = f"0 to {most}: a step of this episode whose window is open"
            raise InvalidArgumentError.of_field("steps_ago", expected, repr(steps_ago))

    def _give(self, streams: Sequence[int], priorities: Sequence[float], steps_ago: int) -> list[float | None]:
        """Give priorities to steps of streams' current episodes, counted back from the next ones.

        Return the earlier priorities of these steps, if the table is a table of steps. If `check_steps_ago` refuses,
        nothing has changed.
        """
        self.check_steps_ago(streams, steps_ago)
        if self._priorities is None:
            return []
        return [
            self._priorities.give(stream, self.streams.next_steps[stream] - steps_ago, priority)
            for stream, priority in zip(streams, priorities, strict=True)
        ]

    def _take_back(self, streams: Sequence[int], steps_ago: int, before: Sequence[float | None]) -> None:
        """Undo `_give`, which returned ``before``, for rows that were not appended."""
        if self._priorities is None:
            return
        for stream, earlier in zip(streams, before, strict=True):
            self._priorities.take_back(stream, self.streams.next_steps[stream] - steps_ago, earlier)

    def _forget(self, streams: list[int]) -> None:
        """Forget priorities of steps that belong to no incomplete window."""
        if self._priorities is not None:
            for stream in streams:
                self._priorities.forget(stream, self.streams.next_steps[stream] - self.streams.forward)

    def end(self, stream: int, values: Mapping[str, Any], is_terminated: bool, priorities: ArrayLike | None) -> bool:
        """End the current episode of a stream; see `WriterStream.end_episode`.

        Returns:
            False if too many blocks are in flight; then nothing has changed.
        """
        terminated = bool(checked_flags("terminated", is_terminated))
        if self._outbox.is_changing or self._outbox.was_torn:
            self._begin_anew()
        if self._steps is None:
            check_not_terminated(terminated)
            if values or priorities is not None:
                expected = "no values and no priorities, because a table without steps stores no closing rows"
                raise InvalidArgumentError.of_field("columns", expected, ", ".join(values) or "priorities")
        if self._steps is None or not self.streams.steps[stream]:
            self.begin_episode(stream)
        elif not self._close(stream, flattened(self._schema, values, is_partial=True), terminated, priorities):
            return False
        if len(self.streams) == 1:
            self._outbox.end_episode()
        return True

    def begin_episode(self, stream: int) -> None:
        """Begin the next episode of a stream."""
        if self._outbox.is_changing:
            self._begin_anew()
        self._outbox.is_changing = True
        self._begin_episode(stream)
        self._outbox.is_changing = False

    def _begin_anew(self) -> None:
        """Begin an episode in each stream, because Ctrl-C ended a call in the middle; see `Outbox.drop_torn`."""
        if self._outbox.is_changing:
            self._outbox.drop_torn()
        for stream in range(len(self.streams)):
            self._begin_episode(stream)
        self._outbox.was_torn = False

    def _begin_episode(self, stream: int) -> None:
        self.streams.begin_episode(stream)
        self._outbox.block.end_run(stream)
        if self._priorities is not None:
            self._priorities.clear(stream)

    def _close(self, stream: int, values: Mapping[str, Any], is_terminated: bool, priorities: ArrayLike | None) -> bool:
        """Append the row that closes an episode, and begin the next one; False if too many blocks are in flight."""
        streams = self.streams
        is_enough = values.keys() >= self._needed_at_end if self._is_transitions else bool(values)
        if not is_enough:
            expected = f"the final values of {', '.join(sorted(self._needed_at_end)) or 'at least one column'}"
            raise InvalidArgumentError.of_field("columns", expected, ", ".join(values) or "none")
        final = checked_row(self._schema, values, is_partial=True)
        block, due = self._outbox.block, self._due_at_end(stream, priorities)
        if not block.room or (due and not block.accepts(priorities=due[0] is not None)):
            if not self._outbox.hand_over():
                return False
            block = self._outbox.block
        end = replay_pb2.EPISODE_END_TERMINATED if is_terminated else replay_pb2.EPISODE_END_TRUNCATED
        row = block.count
        self._outbox.is_changing = True
        block.add_closing(final, stream)
        if block.run_of[stream] < 0:
            block.begin_run(stream, row, *streams.place(stream))
        block.end_run(stream, end)
        known = [each for each in due if each is not None]
        block.add_priorities([stream] * len(due), known or None)
        self._begin_episode(stream)
        self._outbox.is_changing = False
        self._outbox.added()
        return True

    def _due_at_end(self, stream: int, priorities: ArrayLike | None) -> list[float | None]:
        """Return the priorities of the windows that the closing row completes; ``priorities`` are of the last steps."""
        assert self._priorities is not None
        end = self.streams.next_steps[stream]
        before: dict[int, float | None] = {}
        if priorities is not None:
            last = np.atleast_1d(checked_array("priorities", _PRIORITIES, priorities))
            most = min(end, self.streams.forward)
            if len(last) > most:
                expected = f"at most {most}, one for each of the last steps whose windows are not complete"
                raise InvalidArgumentError.of_field("priorities", expected, str(len(last)))
            for step, priority in enumerate(checked_priorities(last, len(last)).tolist(), end - len(last)):
                before[step] = self._priorities.give(stream, step, priority)
        due = [self._priorities.of_window(stream, anchor) for anchor in self.streams.completed_by_end(stream)]
        for step, earlier in before.items():  # the episode continues if the closing row is refused
            self._priorities.take_back(stream, step, earlier)
        # A message has priorities of all windows that it completes, or of none.
        largest = max((each for each in due if each is not None), default=None)
        return [largest if each is None else each for each in due]


def _needed_at_end(steps: Steps) -> frozenset[str]:
    """Return the columns that transitions take from the final observation, without the optional ones."""
    masks = steps.schema.masks
    taken = {column.of for column in steps.derived.values() if isinstance(column, Stack) and column.ahead}
    return frozenset(taken.difference(masks, masks.values()))


def check_not_terminated(terminated: bool) -> None:
    """Refuse to end an episode as terminated in a table without steps, because nothing would remember it."""
    if terminated:
        expected = "False, because a table without steps does not store how episodes end; use a column"
        raise InvalidArgumentError.of_field("terminated", expected, "True")
