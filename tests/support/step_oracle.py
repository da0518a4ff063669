"""An oracle of tables of steps: it keeps every row, and derives every window again."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from replay_proto.steps import WindowShape
from replay_server.storage.runs import GOES_ON, TERMINATED, TRUNCATED, Runs

ENDS = [GOES_ON, TRUNCATED, TERMINATED]
Run = tuple[int, int, int, int, int]
"""Stream, episode, first step, rows, end."""


def runs_of(*runs: Run) -> Runs:
    """Runs as arrays."""
    streams, episodes, first_steps, rows, ends = (list(values) for values in zip(*runs, strict=True))
    return Runs(
        np.array(rows),
        np.array(streams, np.uint64),
        np.array(episodes, np.uint64),
        np.array(first_steps),
        np.array(ends, np.uint8),
    )


def plain_run(rows: int, stream: int = 0, episode: int = 0) -> Runs:
    """Rows of one episode, in a table without steps."""
    return Runs(np.array([rows]), np.array([stream], np.uint64), np.array([episode], np.uint64))


@dataclass
class Row:
    """A row in the oracle."""

    stream: int
    episode: int
    step: int
    end: int
    before: int | None
    after: int | None = None


@dataclass
class Oracle:
    """Every row ever inserted."""

    shape: WindowShape
    rows: list[Row] = field(default_factory=list)
    oldest: int = 0

    def insert(self, run: Run) -> None:
        """Add rows, each linked to the newest row of its stream if it follows it."""
        stream, episode, first_step, count, end = run
        for number in range(count):
            key, step = len(self.rows), first_step + number
            before = next((k for k in reversed(range(self.oldest, key)) if self.rows[k].stream == stream), None)
            if before is not None:
                last = self.rows[before]
                if (last.episode, last.step + 1, last.end) != (episode, step, GOES_ON):
                    before = None
            self.rows.append(Row(stream, episode, step, end if number == count - 1 else GOES_ON, before))
            if before is not None:
                self.rows[before].after = key

    def is_anchor(self, key: int) -> bool:
        """Whether a row can ever be drawn."""
        return self.rows[key].end == GOES_ON and self.rows[key].step % self.shape.period == 0

    def window(self, anchor: int) -> tuple[list[int], list[int]] | None:
        """Rows before an anchor and rows from it on; None if the window is not complete."""
        after = [anchor]
        before: list[int] = []
        while len(after) <= self.shape.forward and self.rows[after[-1]].end == GOES_ON:
            following = self.rows[after[-1]].after
            if following is None:
                return None
            after.append(following)
        key = anchor
        while len(before) < self.shape.backward and self.rows[key].step > 0:
            previous = self.rows[key].before
            if previous is None or previous < self.oldest:
                return None
            before.insert(0, previous)
            key = previous
        return before, after

    def is_pending(self, key: int) -> bool:
        """Whether a row can be drawn when later rows of its window have come, if its earlier ones are there."""
        last = key
        for _ in range(self.shape.forward):
            row = self.rows[last]
            if row.end != GOES_ON:
                return False
            if row.after is None:
                return self.is_anchor(key)
            last = row.after
        return False

    @property
    def drawable(self) -> set[int]:
        """Keys of drawable rows."""
        return {key for key in range(self.oldest, len(self.rows)) if self.is_anchor(key) and self.window(key)}
