"""The items of a table of steps: anchors whose windows are complete.

    items = StepWindows(slots, WindowShape(forward=3, backward=3))
    new = items.arrive(first_key, row_count, runs, oldest=0)    # anchors that can be drawn from now on
    gone = items.leave(oldest, new_oldest)                      # anchors that can no longer be drawn

An item has the key and priority of its anchor, which is one step of its window. The window begins ``backward`` rows
before the anchor, or at the first step of the episode. It ends ``forward`` rows after the anchor, or at the row that
closes the episode. Rows are evicted oldest first, so a window breaks when its first row is evicted.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from replay_proto.errors import FieldError
from replay_proto.steps import WindowShape

from replay_server.backends.index import LiveRows, live_slots
from replay_server.kernels.compile import as_kernel_input
from replay_server.storage.runs import GOES_ON, Runs, ends_of, steps_of
from replay_server.table.items import link_kernels
from replay_server.table.items.items import Items, NewItems, StepCounts, Windows
from replay_server.table.items.link_kernels import ANCHOR, DRAWABLE, FIRST, NewRuns

_FARTHEST = np.iinfo(np.int32).max


class _Newest(NamedTuple):
    """The newest row of a stream."""

    key: int
    episode: int
    step: int
    is_closing: bool
    is_certain: bool = True
    """Whether the stream's next row must be the step after this row. False after a restart, because later rows of the
    stream may have been lost."""


class StepWindows(Items):
    """Links the steps of each episode in the ring, and tracks which anchors are drawable. Uses 9 bytes per slot."""

    def __init__(self, slots: int, shape: WindowShape) -> None:
        """Start without rows."""
        self._slots = slots
        self._shape = shape
        self._links = link_kernels.empty_links(slots)
        self._newest: dict[int, _Newest] = {}
        self._lost = 0

    @property
    def counts(self) -> StepCounts:
        """Counts of anchors and closing rows."""
        anchors, drawable, broken, closing = self._links.counts.tolist()
        return StepCounts(drawable, anchors - drawable - broken, broken, closing, self._lost)

    def count(self, live_rows: int) -> int:
        """Return the number of drawable anchors."""
        return int(self._links.counts[link_kernels.DRAWABLES])

    def check(self, runs: Runs | None) -> None:
        """Check that each run continues its stream, with the next step or with the first step of another episode."""
        assert runs is not None
        newest: dict[int, _Newest] = {}
        for stream, episode, step, rows, end in _rows_of(runs):
            last = newest.get(stream) or self._newest.get(stream)
            if last is not None:
                _check_follows(last, episode, step)
            newest[stream] = _Newest(0, episode, step + rows - 1, end != GOES_ON)

    def priorities_of(self, row_count: int, runs: Runs | None) -> int:
        """Return the number of anchors whose windows these rows complete, even if earlier rows are missing."""
        assert runs is not None
        return int(_completed(runs, self._shape).sum())

    def arrive(self, first: int, row_count: int, runs: Runs | None, oldest: int) -> NewItems:
        """Link new rows to the earlier steps of their episodes, and return the anchors whose windows they complete."""
        assert runs is not None
        numbers = _completed(runs, self._shape)
        ends_at = np.cumsum(numbers)
        keys, places = np.empty(int(ends_at[-1]), np.int64), np.empty(int(ends_at[-1]), np.int64)
        distances, after = [], first
        for stream, episode, step, rows, end in _rows_of(runs):
            distances.append(self._distance(after, stream, episode, step, oldest))
            after += rows
            self._newest[stream] = _Newest(after - 1, episode, step + rows - 1, end != GOES_ON)
        assert runs.first_steps is not None
        assert runs.ends is not None
        new = NewRuns(
            as_kernel_input(runs.row_counts),
            as_kernel_input(runs.first_steps),
            np.array(distances, np.int64),
            as_kernel_input(runs.ends),
            ends_at - numbers,
        )
        found = link_kernels.arrive(self._links, new, first, oldest, *self._shape, keys, places)
        return NewItems(keys[:found], places[:found])

    def leave(self, first: int, end: int) -> NDArray[np.int64]:
        """Remove evicted rows, and return the anchors that were drawable and are now evicted or broken."""
        pending = self._pending
        gone = link_kernels.evict(self._links, first, end, self._shape.backward)
        self._lost += pending - self._pending
        if len(self._newest) > self._slots:  # streams that ended long ago
            self._newest = {stream: newest for stream, newest in self._newest.items() if newest.key >= end}
        return gone

    def retire(self, keys: NDArray[np.int64]) -> None:
        """Let drawable anchors be anchors no longer, because their windows had their last draw. keys: distinct."""
        self._links.flags[keys % self._slots] &= np.uint8(~(ANCHOR | DRAWABLE) & 0xFF)
        self._links.counts[[link_kernels.ANCHORS, link_kernels.DRAWABLES]] -= len(keys)

    def rows_of_open_windows(self, oldest: int) -> int:
        """Return the rows of a whole window times the number of unfinished episodes with a live row."""
        return self._shape.rows * sum(each.key >= oldest and not each.is_closing for each in self._newest.values())

    def blank(self) -> Self:
        """Return windows of the same shape, without rows."""
        return type(self)(self._slots, self._shape)

    def windows(self, anchors: NDArray[np.int64]) -> Windows:
        """Return the windows of anchors that can be drawn. The argument is their keys, int64[batch]."""
        return Windows(*link_kernels.windows_of(self._links, anchors, self._shape.forward, self._shape.backward))

    def rebuild(self, live: LiveRows, links: NDArray[np.uint64], is_dead: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Link the live rows of a stored table, and return which of them are drawable."""
        for array in self._links:
            array[:] = 0
        slots = live_slots(live)
        keys = np.arange(live.oldest, live.oldest + live.size, dtype=np.int64)
        steps, ends = steps_of(links), ends_of(links)
        is_anchor = (ends == GOES_ON) & (steps % np.uint64(self._shape.period) == 0)
        is_first = steps == 0
        flags = FIRST * is_first.astype(np.uint8) + ANCHOR * is_anchor.astype(np.uint8)
        self._links.flags[slots] = ends | flags
        self._links.counts[link_kernels.ANCHORS] = np.count_nonzero(is_anchor)
        self._links.counts[link_kernels.CLOSINGS] = np.count_nonzero(ends)
        order = np.lexsort((keys, links[:, 0]))
        before, after = order[:-1], order[1:]
        follows = (
            (links[before, :2] == links[after, :2]).all(axis=1)
            & (steps[before] + np.uint64(1) == steps[after])
            & (ends[before] == GOES_ON)
            & (keys[after] - keys[before] <= _FARTHEST)
        )
        before, after = before[follows], after[follows]
        distances = (keys[after] - keys[before]).astype(np.int32)
        self._links.back[slots[after]], self._links.ahead[slots[before]] = distances, distances
        self._newest = _newest_of(keys, links, steps, ends, order)
        return link_kernels.find_drawable(
            self._links, live.oldest, live.size, self._shape.forward, self._shape.backward
        )

    @property
    def _pending(self) -> int:
        """Number of anchors that wait for later rows."""
        counts = self._links.counts
        return int(counts[link_kernels.ANCHORS] - counts[link_kernels.DRAWABLES] - counts[link_kernels.BROKENS])

    def _distance(self, first: int, stream: int, episode: int, step: int, oldest: int) -> int:
        """Return the key of a run's first row minus the key of the episode's previous step.

        Return 0 if that step is not live, or is too far away for an int32.
        """
        last = self._newest.get(stream)
        if last is None or last.key < oldest or last.is_closing or (last.episode, last.step + 1) != (episode, step):
            return 0
        distance = first - last.key
        return distance if distance <= _FARTHEST else 0


def _completed(runs: Runs, shape: WindowShape) -> NDArray[np.int64]:
    """Return int64[m]: the number of anchors whose windows each run completes, if no earlier row is missing."""
    assert runs.first_steps is not None
    assert runs.ends is not None
    stop = runs.first_steps + runs.row_counts
    first = np.maximum(runs.first_steps - shape.forward, 0)
    end = np.where(runs.ends == GOES_ON, np.maximum(stop - shape.forward, 0), stop - 1)
    numbers: NDArray[np.int64] = np.maximum(-(-end // shape.period) - -(-first // shape.period), 0)
    return numbers


def _rows_of(runs: Runs) -> zip[tuple[int, int, int, int, int]]:
    """Iterate over the stream, episode, first step, number of rows and end of each run."""
    assert runs.first_steps is not None
    assert runs.ends is not None
    arrays = (runs.streams, runs.episodes, runs.first_steps, runs.row_counts, runs.ends)
    return zip(*(array.tolist() for array in arrays), strict=True)


def _check_follows(last: _Newest, episode: int, step: int) -> None:
    if episode == last.episode and last.is_closing:
        raise FieldError("runs.episodes", f"another than {episode}, which has ended", str(episode))
    if episode == last.episode and (step <= last.step or (last.is_certain and step != last.step + 1)):
        raise FieldError("runs.first_steps", f"{last.step + 1}, the next step of episode {episode}", str(step))
    if episode != last.episode and last.is_certain and step != 0:
        raise FieldError("runs.first_steps", f"0, the first step of episode {episode}", str(step))


def _newest_of(
    keys: NDArray[np.int64],
    links: NDArray[np.uint64],
    steps: NDArray[np.uint64],
    ends: NDArray[np.uint8],
    order: NDArray[np.intp],
) -> dict[int, _Newest]:
    if not len(order):
        return {}
    streams = links[order, 0]
    last = order[np.append(streams[1:] != streams[:-1], True)]
    return {
        int(links[row, 0]): _Newest(int(keys[row]), int(links[row, 1]), int(steps[row]), bool(ends[row]), False)
        for row in last
    }


def warm_up_windows() -> None:
    """Compile or load all kernels of `link_kernels`."""
    zero, one = np.zeros(1, np.uint64), np.ones(1, np.uint8)
    runs = Runs(np.array([4]), zero, zero, np.zeros(1, np.int64), one)
    items = StepWindows(8, WindowShape(1, 1))
    items.windows(np.asarray(items.arrive(0, 4, runs, 0).keys))
    items.leave(0, 1)
    items.rebuild(LiveRows(1, 3, 8), runs.links()[1:], np.zeros(3, np.bool_))
