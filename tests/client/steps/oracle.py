"""What docs/concepts/steps.md says about tables of steps, as slow and obvious code.

It was written from that page alone, without a look at the product. It knows what was written, and says which steps can
be drawn and what each item contains.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from replay_client import Column, Derived, Discount, Mask, Return, Sequences, Stack, Transitions

Values = dict[str, npt.NDArray[Any]]
Columns = Mapping[str, Column | Derived]


@dataclass(eq=False)
class Episode:
    """The rows of an episode. The last one is a closing row if the episode was ended."""

    rows: list[Row] = field(default_factory=list)

    @property
    def closed(self) -> bool:
        return bool(self.rows) and self.rows[-1].closing

    @property
    def steps(self) -> int:
        return len(self.rows) - self.closed

    def holds_step(self, index: int) -> bool:
        return 0 <= index < self.steps

    def leads_to_a_terminal_state(self, index: int) -> bool:
        """Whether the row after a step closes the episode, as terminated."""
        return index + 1 < len(self.rows) and self.rows[index + 1].terminal


@dataclass(eq=False)
class Row:
    """A stored row: a step, or the row that closes an episode."""

    key: int
    episode: Episode
    index: int
    values: Values
    closing: bool = False
    terminal: bool = False
    given: float | None = None
    """The priority that was given to the step."""
    priority: float | None = None
    """The priority of the item whose anchor the step is."""


class StepsOracle:
    """Everything written to a table of steps, and what can be drawn from it."""

    def __init__(self, columns: Columns, steps: Transitions | Sequences) -> None:
        self.columns = columns
        self.steps = steps
        self.rows: list[Row] = []
        """All rows ever written, in order."""
        self.live: set[Row] = set()
        self.written_since_reset = 0
        self._episodes: dict[Hashable, Episode] = {}

    # What a user calls

    def append(
        self, stream: Hashable, values: Mapping[str, Any], priority: float | None = None, steps_ago: int = 0
    ) -> Row:
        episode = self._episodes.setdefault(stream, Episode())
        row = self._store(episode, values)
        if priority is not None:
            episode.rows[row.index - steps_ago].given = priority
        if row.index >= self.rows_after:
            self._complete(episode.rows[row.index - self.rows_after])
        return row

    def end_episode(
        self, stream: Hashable, values: Mapping[str, Any], *, terminated: bool = False, priorities: Any = None
    ) -> Row:
        episode = self._episodes.pop(stream)
        row = self._store(episode, values, closing=True, terminal=terminated)
        if priorities is not None:
            for step, priority in zip(episode.rows[-1 - len(priorities) : -1], priorities, strict=True):
                step.given = priority
        for step in self.completed_by(episode):
            self._complete(step)
        return row

    def _complete(self, anchor: Row) -> None:
        """A transition has the priority of its first step; a sequence combines those of its steps."""
        if isinstance(self.steps, Transitions):
            anchor.priority = anchor.given
            return
        steps = anchor.episode.rows[anchor.index : anchor.index + self.steps.length]
        known = [step.given for step in steps if step.given is not None]
        if known:
            anchor.priority = self.steps.eta * max(known) + (1 - self.steps.eta) * sum(known) / len(known)

    def abandon_episode(self, stream: Hashable) -> None:
        self._episodes.pop(stream, None)

    def has_steps(self, stream: Hashable) -> bool:
        """Whether a stream has begun an episode."""
        return stream in self._episodes

    def steps_of(self, stream: Hashable) -> int:
        """Steps of a stream's current episode so far."""
        return len(self._episodes[stream].rows) if stream in self._episodes else 0

    def completed_by(self, closed: Episode) -> list[Row]:
        end = closed.rows[-1].index
        return [row for row in closed.rows[:-1] if self._is_anchor(row) and row.index + self.rows_after >= end]

    def reset(self) -> None:
        """Removes all rows. Episodes go on, and so do keys."""
        self.live.clear()
        self.written_since_reset = 0

    @property
    def stored(self) -> dict[str, Column]:
        """The stored columns."""
        return {name: column for name, column in self.columns.items() if isinstance(column, Column)}

    @property
    def needed_at_the_end(self) -> set[str]:
        """The columns that the end of an episode must have."""
        return {column.of for column in self.columns.values() if isinstance(column, Stack) and column.ahead}

    @property
    def most_rows(self) -> int:
        """Rows of the largest window."""
        stack = max((column.count for column in self.columns.values() if isinstance(column, Stack)), default=1)
        return self._burn_in + stack + self.rows_after

    # What can be drawn

    def drawable(self) -> dict[int, Row]:
        """The steps that can be drawn, by key."""
        return {row.key: row for row in self.live if self.is_drawable(row)}

    def is_drawable(self, row: Row) -> bool:
        """Whether a row is an anchor whose whole window is in the table."""
        return self._is_anchor(row) and self.is_complete(row) and all(other in self.live for other in self.window(row))

    def is_pending(self, row: Row) -> bool:
        """Whether a row is an anchor that lacks later rows of its window."""
        return self._is_anchor(row) and not self.is_complete(row)

    def is_complete(self, row: Row) -> bool:
        """Whether the last row of a window has been written."""
        return row.episode.closed or row.index + self.rows_after < len(row.episode.rows)

    def window(self, row: Row) -> list[Row]:
        """The rows that the item of a step needs, as far as they have been written."""
        longest = max((column.count for column in self.columns.values() if isinstance(column, Stack)), default=1)
        first = row.index - self._burn_in - (longest - 1)
        return row.episode.rows[max(first, 0) : row.index + self.rows_after + 1]

    @property
    def rows_after(self) -> int:
        """How many rows after its anchor a window has, unless the episode ends."""
        return self.steps.n_step if isinstance(self.steps, Transitions) else self.steps.length

    @property
    def _burn_in(self) -> int:
        return self.steps.burn_in if isinstance(self.steps, Sequences) else 0

    @property
    def counted(self) -> tuple[int, int, int, int]:
        """How many rows are drawable, pending, broken and closing; others are between the anchors of sequences."""
        drawable, pending = len(self.drawable()), sum(map(self.is_pending, self.live))
        anchors, closing = sum(map(self._is_anchor, self.live)), sum(row.closing for row in self.live)
        return drawable, pending, anchors - drawable - pending, closing

    def _is_anchor(self, row: Row) -> bool:
        period = self.steps.period if isinstance(self.steps, Sequences) else 1
        return not row.closing and row.index % period == 0

    # What an item contains

    def item(self, row: Row) -> Values:
        """All columns of the item of a step."""
        value = self._in_transition if isinstance(self.steps, Transitions) else self._in_sequence
        return {
            name: value(name, column, row)
            for name, column in self.columns.items()
            if not (isinstance(column, Column) and not column.sampled)
        }

    def _in_transition(self, name: str, column: Any, row: Row) -> npt.NDArray[Any]:
        gamma, rows = self.steps.gamma, row.episode.rows
        last = min(row.index + self.rows_after, len(rows) - 1)
        spanned = last - row.index
        match column:
            case Column():
                return row.values[name]
            case Stack():
                return self._stack(column, row.episode, last if column.ahead else row.index)
            case Return():
                return self._discounted_sum([rows[row.index + i].values[column.of] for i in range(spanned)])
            case Discount():
                return np.asarray(0 if rows[last].terminal else gamma**spanned, np.float32)
        raise AssertionError(column)

    def _discounted_sum(self, values: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """The sum of ``gamma**i * values[i]`` in float64, by Horner's rule, in the dtype of the values."""
        total = np.zeros(values[0].shape, np.float64)
        for value in reversed(values):
            total = value.astype(np.float64) + self.steps.gamma * total
        return total.astype(values[0].dtype)

    def _in_sequence(self, name: str, column: Any, row: Row) -> npt.NDArray[Any]:
        steps, episode = self.steps, row.episode
        assert isinstance(steps, Sequences)
        first = row.index - steps.burn_in
        indices = range(first, row.index + steps.length)
        match column:
            case Column(at="start"):
                return episode.rows[max(first, 0)].values[name]
            case Column():
                return np.stack([self._value(name, episode, index) for index in indices])
            case Stack():
                return np.stack([self._stack_at(column, episode, index) for index in indices])
            case Mask():
                return np.asarray([episode.holds_step(index) for index in indices])
            case Discount():
                return np.asarray([self._discount(episode, index) for index in indices], np.float32)
        raise AssertionError(column)

    def _discount(self, episode: Episode, index: int) -> float:
        if not episode.holds_step(index) or episode.leads_to_a_terminal_state(index):
            return 0
        return self.steps.gamma

    def _value(self, name: str, episode: Episode, index: int) -> npt.NDArray[Any]:
        """A column's value at a position, which is zero where there is no row."""
        if 0 <= index < len(episode.rows):
            return episode.rows[index].values[name]
        return np.zeros_like(episode.rows[0].values[name])

    def _stack_at(self, column: Stack, episode: Episode, index: int) -> npt.NDArray[Any]:
        stack = self._stack(column, episode, min(max(index, 0), len(episode.rows) - 1))
        return stack if 0 <= index < len(episode.rows) else np.zeros_like(stack)

    def _stack(self, column: Stack, episode: Episode, end: int) -> npt.NDArray[Any]:
        """The last values up to a row, oldest first, with padding before the episode."""
        frames = []
        for index in range(end - column.count + 1, end + 1):
            if index < 0 and column.padding == "repeat":
                frames.append(episode.rows[0].values[column.of])
            else:
                frames.append(self._value(column.of, episode, index))
        return frames[0] if column.count == 1 else np.stack(frames)

    def _store(
        self, episode: Episode, values: Mapping[str, Any], *, closing: bool = False, terminal: bool = False
    ) -> Row:
        stored: Values = {}
        for name, column in self.columns.items():
            if isinstance(column, Column):
                shape = column.shape if isinstance(column.shape, tuple) else (column.shape,)
                value = np.zeros(shape, column.dtype)
                if name in values:
                    value[...] = values[name]
                stored[name] = value
        row = Row(len(self.rows), episode, len(episode.rows), stored, closing=closing, terminal=terminal)
        episode.rows.append(row)
        self.rows.append(row)
        self.live.add(row)
        self.written_since_reset += 1
        return row
