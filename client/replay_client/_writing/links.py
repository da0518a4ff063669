"""Computes the streams, episodes and steps of rows that were read from a table and are inserted again.

    links = StepLinks(table.steps.window)
    linked = links.of(rows)                                     # chunk by chunk, in order of insertion
    message.runs = linked.runs(0, 100)
    message.priorities = linked.priorities[linked.places[0] : linked.places[100]]

In a table of steps, an insert has one priority for each anchor whose window it completes. Anchors may be in earlier
chunks, so `StepLinks` remembers the newest rows of every stream. It computes with arrays: a loop over the rows would
take longer than everything else.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from replay_proto.steps import WindowShape
from replay_proto.v1 import replay_pb2

from replay_client.batch import Rows
from replay_client.errors import InvalidArgumentError

_GOES_ON: Final = replay_pb2.EPISODE_END_UNSPECIFIED
_LARGEST_STREAM: Final = 2**64 - 1


@dataclass(frozen=True)
class Links:
    """The links of consecutive rows (stream, episode and step of each), and the priorities to insert with them."""

    streams: NDArray[np.uint64]
    """uint64[n]: stream of each row."""
    episodes: NDArray[np.uint64]
    """uint64[n]: episode of each row within its stream."""
    steps: NDArray[np.int64] | None
    """int64[n]: number of each step within its episode. None if the table is not a table of steps."""
    ends: NDArray[np.uint8] | None
    """uint8[n]: whether and how each row closes its episode. None if the table is not a table of steps."""
    starts: NDArray[np.intp]
    """int64[m]: the first row of each run."""
    priorities: NDArray[np.float64]
    """float64[p]: priorities of the rows; in a table of steps, of the anchors that the rows complete."""
    places: NDArray[np.intp]
    """int64[n + 1]: index in `priorities` of the first one for each row; the last element is p."""

    def part_end(self, first: int, most_rows: int, most_runs: int) -> int:
        """Return the exclusive end of the longest part that begins at row ``first`` and exceeds neither limit."""
        end = min(first + most_rows, len(self.streams))
        next_start = int(self.starts.searchsorted(first, "right")) + most_runs - 1
        return min(end, int(self.starts[next_start])) if next_start < len(self.starts) else end

    def runs(self, first: int, end: int) -> replay_pb2.Runs:
        """Return the runs of the rows from ``first`` up to but excluding ``end``."""
        later = self.starts[(self.starts > first) & (self.starts < end)]
        starts, ends = np.append(first, later), np.append(later, end)
        runs = replay_pb2.Runs(
            row_counts=(ends - starts).astype("<i8").tobytes(),
            streams=self.streams[starts].astype("<u8").tobytes(),
            episodes=self.episodes[starts].astype("<u8").tobytes(),
        )
        if self.steps is not None and self.ends is not None:
            runs.first_steps = self.steps[starts].astype("<i8").tobytes()
            runs.ends = self.ends[ends - 1].tobytes()
        return runs


def links_of_rows(rows: Rows) -> Links:
    """Return the links of rows of a table without steps."""
    is_start = np.ones(rows.batch_size, bool)
    is_start[1:] = (rows.streams[1:] != rows.streams[:-1]) | (rows.episodes[1:] != rows.episodes[:-1])
    starts, places = np.flatnonzero(is_start), np.arange(rows.batch_size + 1)
    return Links(rows.streams, rows.episodes, None, None, starts, rows.priorities, places)


@dataclass
class _Steps:
    """Rows of a table of steps, sorted by stream and then by time."""

    original: NDArray[np.uint64]
    """uint64[n]: stream of each row in the table that it was read from."""
    streams: NDArray[np.uint64]
    """uint64[n]: stream of each row in the table that it is inserted into."""
    episodes: NDArray[np.uint64]
    steps: NDArray[np.int64]
    ends: NDArray[np.uint8]
    priorities: NDArray[np.float64]

    def mapped(self, of: Callable[[NDArray[Any]], NDArray[Any]]) -> _Steps:
        """Apply a function to every array."""
        return _Steps(*(of(getattr(self, each.name)) for each in fields(self)))

    def joined(self, other: _Steps) -> _Steps:
        """Append other rows."""
        return _Steps(*(np.concatenate([getattr(self, each.name), getattr(other, each.name)]) for each in fields(self)))


class StepLinks:
    """Computes the links of rows of a table of steps, chunk by chunk.

    Each stream gets a new random number, because the table may already contain the original one. If rows are
    missing in a stream, the next row begins another stream, which may begin at any step.
    """

    def __init__(self, window: WindowShape, *, keep_streams: bool = False) -> None:
        """Compute links for windows of this shape.

        With ``keep_streams``, streams keep their numbers, and what follows missing rows gets the same number at each
        repetition. Only for a table that has no rows of other origin.
        """
        self._window = window
        self._keep_streams = keep_streams
        self._kept = _Steps(*(np.empty(0, dtype) for dtype in ("u8", "u8", "u8", "i8", "u1", "f8")))

    def of(self, rows: Rows) -> Links:
        """Compute the links of the next rows, in the order in which they are inserted."""
        assert rows.steps is not None
        assert rows.ends is not None
        new_streams = _streams_from(rows) if self._keep_streams else _random_streams(rows.batch_size)
        new = _Steps(rows.streams, new_streams, rows.episodes, rows.steps, rows.ends, rows.priorities)
        kept_count = len(self._kept.original)
        together = self._kept.joined(new)
        order = np.argsort(together.original, kind="stable")
        by_stream = together.mapped(lambda values: values[order])
        follows = _follow(by_stream)
        is_new = order >= kept_count
        if self._keep_streams:
            is_first = is_new & np.append(True, by_stream.original[1:] != by_stream.original[:-1])
            by_stream.streams[is_first] = by_stream.original[is_first]
        by_stream.streams = by_stream.streams[_last_true(~(follows & is_new))]
        place_of = np.empty_like(order)
        place_of[order] = np.arange(len(order))
        places_of_new = place_of[kept_count:]
        priorities, places = self._priorities(by_stream, places_of_new)
        self._keep(by_stream)
        streams = by_stream.streams[places_of_new]
        return Links(streams, rows.episodes, rows.steps, rows.ends, _run_starts(streams, new), priorities, places)

    def _priorities(self, by_stream: _Steps, rows: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return the priorities of the anchors that rows complete, and the index of each row's first one.

        A step completes the anchor ``forward`` steps earlier. A closing row completes the anchors among the last
        ``forward`` steps. The priority is NaN if the anchor could not be drawn when its row was read. If the anchor's
        row is missing, the server ignores the priority, so any row's priority will do.
        """
        forward, _, period = self._window
        steps = by_stream.steps[rows]
        first = -(-np.maximum(steps - forward, 0) // period)
        end = -(-np.where(by_stream.ends[rows] == _GOES_ON, steps - forward + 1, steps) // period)
        counts = np.maximum(end - first, 0)
        places = np.append(0, np.cumsum(counts))
        numbers = np.arange(places[-1]) - np.repeat(places[:-1] - first, counts)
        back = np.repeat(steps, counts) - numbers * period
        return by_stream.priorities[np.maximum(np.repeat(rows, counts) - back, 0)], places

    def _keep(self, by_stream: _Steps) -> None:
        """Keep the newest rows of each stream: all whose windows may still be incomplete, and at least one row."""
        streams = by_stream.original
        is_last = np.append(streams[1:] != streams[:-1], True)[: len(streams)]
        lasts = np.flatnonzero(is_last)
        to_last = lasts[np.searchsorted(lasts, np.arange(len(streams)))] - np.arange(len(streams))
        is_kept = to_last < max(1, self._window.forward)
        self._kept = by_stream.mapped(lambda values: values[is_kept])


class StepOrder:
    """Checks that the rows of each stream come in order of their episodes and steps, chunk by chunk.

    Otherwise, each row would begin another stream, and no window would be complete.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}  # episode and step of each stream's last row

    def check(self, rows: Rows) -> None:
        """Check that no row of a table of steps belongs before an earlier one; the error names it."""
        assert rows.steps is not None
        order = np.argsort(rows.streams, kind="stable")
        streams, episodes, steps = rows.streams[order], rows.episodes[order], rows.steps[order]
        is_same = streams[1:] == streams[:-1]
        is_later = (episodes[1:] > episodes[:-1]) | ((episodes[1:] == episodes[:-1]) & (steps[1:] > steps[:-1]))
        wrong = (np.flatnonzero(is_same & ~is_later) + 1).tolist()
        firsts = np.flatnonzero(np.append(True, ~is_same)).tolist()
        for first, end in zip(firsts, [*firsts[1:], len(order)], strict=True):
            stream = int(streams[first])
            last = self._last.get(stream)
            if last is not None and (int(episodes[first]), int(steps[first])) <= last:
                wrong.append(first)
            self._last[stream] = int(episodes[end - 1]), int(steps[end - 1])
        if wrong:
            got = f"step {steps[wrong[0]]} of episode {episodes[wrong[0]]} after a later one"
            expected = "the rows of each stream in order of their episodes and steps"
            raise InvalidArgumentError.of_field("rows", expected, f"{got}, in stream {streams[wrong[0]]}")


def _follow(by_stream: _Steps) -> NDArray[np.bool_]:
    """Return bool[n]: whether each row continues its stream, as the next step or the first step of a new episode."""
    follows = np.zeros(len(by_stream.steps), bool)
    same_episode = by_stream.episodes[1:] == by_stream.episodes[:-1]
    next_step = (by_stream.steps[1:] == by_stream.steps[:-1] + 1) & (by_stream.ends[:-1] == _GOES_ON)
    follows[1:] = by_stream.original[1:] == by_stream.original[:-1]
    follows[1:] &= np.where(same_episode, next_step, by_stream.steps[1:] == 0)
    return follows


def _run_starts(streams: NDArray[np.uint64], rows: _Steps) -> NDArray[np.intp]:
    """Return the indices, int64[m], of the rows that begin a run: each is not the step after the previous row."""
    is_next = (
        (streams[1:] == streams[:-1])
        & (rows.episodes[1:] == rows.episodes[:-1])
        & (rows.steps[1:] == rows.steps[:-1] + 1)
        & (rows.ends[:-1] == _GOES_ON)
    )
    return np.flatnonzero(np.append(True, ~is_next))


def _last_true(flags: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return int64[n]: for each flag, the index of the last True flag at or before it. The first flag must be True."""
    return np.maximum.accumulate(np.where(flags, np.arange(len(flags)), 0))


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a number for each number, uint64[n]: a bijection that changes about half of the bits, except of 0."""
    words = words ^ (words >> np.uint64(30))
    words = words * np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _streams_from(rows: Rows) -> NDArray[np.uint64]:
    """Return the number of the stream that would begin at each row, uint64[n], computed from the row's links."""
    assert rows.steps is not None
    return mixed(mixed(mixed(rows.streams) ^ rows.episodes) ^ rows.steps.astype(np.uint64))


def _random_streams(count: int) -> NDArray[np.uint64]:
    random = np.random.default_rng(secrets.randbits(128))
    return random.integers(1, _LARGEST_STREAM, count, np.uint64, endpoint=True)
