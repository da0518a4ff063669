"""Kernels that link the steps of episodes in the ring, and find complete windows.

`replay_server.table.items.step_windows` describes windows and anchors. Steps of an episode need not be adjacent in the
ring, because the rows of several streams alternate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay_server.kernels.compile import Integers, kernel, part_of_kernel

BYTES_PER_SLOT = 9

CLOSING, FIRST, ANCHOR, DRAWABLE, BROKEN = 3, 4, 8, 16, 32
"""Flags of a row. The two bits of `CLOSING` say whether and how the row closes its episode, as in `Runs.ends`. An
anchor is drawable while its window is complete, and broken when a row of its window is missing for good."""
ANCHORS, DRAWABLES, BROKENS, CLOSINGS = range(4)
"""Positions in `Links.counts`."""


class Links(NamedTuple):
    """Links between the steps of each episode, by slot. Slots without a live row have flags of 0 and unused links."""

    back: NDArray[np.int32]
    """int32[slots]: key of the row minus the key of the episode's previous step; 0 if there is none."""
    ahead: NDArray[np.int32]
    """int32[slots]: key of the episode's next step minus the key of the row; 0 if there is none."""
    flags: NDArray[np.uint8]
    """uint8[slots]: flags of the row."""
    counts: Integers
    """int64[4]: numbers of live anchors, drawable anchors, broken anchors and live closing rows."""


def empty_links(slots: int) -> Links:
    """Create the links of an empty ring."""
    back, ahead = np.zeros(slots, np.int32), np.zeros(slots, np.int32)
    return Links(back, ahead, np.zeros(slots, np.uint8), np.zeros(4, np.int64))


class NewRuns(NamedTuple):
    """Runs of new rows, in the order of their keys."""

    row_counts: Integers
    """int64[m]: number of rows of each run."""
    first_steps: Integers
    """int64[m]: number of each run's first step in its episode."""
    distances: Integers
    """int64[m]: key of each run's first row minus the key of the episode's previous step; 0 if there is none."""
    closings: NDArray[np.uint8]
    """uint8[m]: whether and how each run's last row closes the episode, as in `Runs.ends`."""
    places: Integers
    """int64[m]: for each run, the index of the priority of its first completed anchor in the insert's priorities."""


@kernel
def arrive(
    links: Links,
    runs: NewRuns,
    first: int,
    oldest: int,
    forward: int,
    backward: int,
    period: int,
    keys: Integers,
    places: Integers,
) -> int:
    """Link the rows of new runs, and mark the anchors whose windows they complete; return the number of these.

    The rows have keys from ``first`` on; ``oldest`` is the key of the oldest live row. See `WindowShape` for
    ``forward``, ``backward`` and ``period``. The output is ``keys``, int64[n]: keys of the anchors that became
    drawable, run by run, in the order of steps; and ``places``, int64[n]: index of each anchor's priority among the
    insert's.
    """
    found = 0
    for run in range(len(runs.row_counts)):
        count, step = runs.row_counts[run], runs.first_steps[run]
        _link(links, first, count, step, runs.distances[run], runs.closings[run], period)
        found = _complete(
            links, first, count, step, oldest, forward, backward, period, runs.places[run], keys, places, found
        )
        first += count
    return found


@part_of_kernel
def _link(links: Links, first: int, count: int, step: int, distance: int, closing: int, period: int) -> None:
    """Link new rows from key ``first`` on, which are consecutive steps of one episode from ``step`` on.

    ``distance`` and ``closing`` are elements of `NewRuns.distances` and `NewRuns.closings`.
    """
    slots = len(links.flags)
    if distance:
        links.ahead[(first - distance) % slots] = distance
    for row in range(count):
        slot = (first + row) % slots
        links.back[slot] = 1 if row else distance
        links.ahead[slot] = 1 if row < count - 1 else 0
        flags = FIRST if step + row == 0 else 0
        if closing and row == count - 1:
            flags |= closing
            links.counts[CLOSINGS] += 1
        elif (step + row) % period == 0:
            flags |= ANCHOR
            links.counts[ANCHORS] += 1
        links.flags[slot] = flags


@part_of_kernel
def _complete(
    links: Links,
    first: int,
    count: int,
    step: int,
    oldest: int,
    forward: int,
    backward: int,
    period: int,
    place: int,
    keys: Integers,
    places: Integers,
    found: int,
) -> int:
    """Find the anchors whose windows new rows complete, mark them as drawable or broken, and return how many are found.

    The new rows are as for `_link`, and linked already; ``place`` is an element of `NewRuns.places`, and the output is
    that of `arrive`, with ``found`` anchors in it.
    """
    back, ahead, flags = links.back, links.ahead, links.flags
    slots = len(flags)
    first_anchor = (max(0, step - forward) + period - 1) // period
    # `tail` is the row `hops` steps before the current one. `hops` is `forward`, or less if the links end earlier.
    tail, hops = first, 0
    while hops < forward and back[tail % slots] and tail - back[tail % slots] >= oldest:
        tail -= back[tail % slots]
        hops += 1
    for row in range(count):
        key = first + row
        if row:
            if hops < forward:
                hops += 1
            else:
                tail += ahead[tail % slots]
        is_closing = flags[key % slots] & CLOSING
        if hops < forward and not is_closing:
            continue
        # A closing row completes the windows of all anchors from `tail` on; any other row only the window of `tail`.
        anchor, anchor_step = tail, step + row - hops
        while True:
            slot = anchor % slots
            if flags[slot] & (ANCHOR | DRAWABLE | BROKEN) == ANCHOR:
                if _has_context(anchor, oldest, backward, back, flags):
                    flags[slot] |= DRAWABLE
                    links.counts[DRAWABLES] += 1
                    keys[found] = anchor
                    places[found] = place + anchor_step // period - first_anchor
                    found += 1
                else:
                    flags[slot] |= BROKEN
                    links.counts[BROKENS] += 1
            if not is_closing or anchor == key:
                break
            anchor += ahead[slot]
            anchor_step += 1
    return found


@part_of_kernel
def _has_context(anchor: int, oldest: int, backward: int, back: NDArray[np.int32], flags: NDArray[np.uint8]) -> bool:
    """Whether all rows of a window before its anchor are live."""
    slots = len(flags)
    key = anchor
    for _ in range(backward):
        slot = key % slots
        if flags[slot] & FIRST:
            return True
        if back[slot] == 0 or key - back[slot] < oldest:
            return False
        key -= back[slot]
    return True


@kernel
def evict(links: Links, oldest: int, end: int, backward: int) -> Integers:
    """Remove the oldest live rows, with keys from ``oldest`` up to but excluding ``end``.

    Return int64[n]: keys of the anchors that were drawable, and are now evicted or broken.
    """
    ahead, flags, counts = links.ahead, links.flags, links.counts
    slots = len(flags)
    gone = np.empty((end - oldest) * (backward + 1), np.int64)
    found = 0
    for evicted in range(oldest, end):
        key = evicted
        for _ in range(backward + 1):
            slot = key % slots
            if flags[slot] & DRAWABLE:
                flags[slot] = (flags[slot] & ~np.uint8(DRAWABLE)) | np.uint8(BROKEN)
                counts[DRAWABLES] -= 1
                counts[BROKENS] += 1
                gone[found] = key
                found += 1
            if ahead[slot] == 0:
                break
            key += ahead[slot]
        slot = evicted % slots
        counts[ANCHORS] -= (flags[slot] & ANCHOR) != 0
        counts[BROKENS] -= (flags[slot] & BROKEN) != 0
        counts[CLOSINGS] -= (flags[slot] & CLOSING) != 0
        flags[slot] = 0
    return gone[:found]


@kernel
def find_drawable(links: Links, oldest: int, size: int, forward: int, backward: int) -> NDArray[np.bool_]:
    """Mark the drawable and broken anchors among linked rows. Return bool[size]: which are drawable, oldest first."""
    back, ahead, flags = links.back, links.ahead, links.flags
    slots = len(flags)
    drawable = np.zeros(size, np.bool_)
    for row in range(size):
        slot = (oldest + row) % slots
        if not flags[slot] & ANCHOR:
            continue
        key = oldest + row
        hops = 0
        while hops < forward and not flags[key % slots] & CLOSING and ahead[key % slots]:
            key += ahead[key % slots]
            hops += 1
        if hops < forward and not flags[key % slots] & CLOSING:
            continue
        if _has_context(oldest + row, oldest, backward, back, flags):
            flags[slot] |= DRAWABLE
            links.counts[DRAWABLES] += 1
            drawable[row] = True
        else:
            flags[slot] |= BROKEN
            links.counts[BROKENS] += 1
    return drawable


@kernel
def windows_of(
    links: Links, anchors: Integers, forward: int, backward: int
) -> tuple[Integers, NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
    """Return the windows of drawable anchors; see `Windows`."""
    back, ahead, flags = links.back, links.ahead, links.flags
    slots = len(flags)
    keys = np.empty(len(anchors) * (backward + 1 + forward), np.int64)
    before = np.empty(len(anchors), np.int32)
    after = np.empty(len(anchors), np.int32)
    ends = np.empty(len(anchors), np.uint8)
    count = 0
    for window in range(len(anchors)):
        key = anchors[window]
        slot = key % slots
        hops = 0
        while hops < backward and not flags[slot] & FIRST:
            distance = back[slot]
            key -= distance
            slot -= distance  # as key % slots, without a division
            if slot < 0:
                slot += slots
            hops += 1
        before[window] = hops
        keys[count] = key
        count += 1
        while hops:
            distance = ahead[slot]
            key += distance
            slot += distance
            if slot >= slots:
                slot -= slots
            keys[count] = key
            count += 1
            hops -= 1
        while hops < forward and not flags[slot] & CLOSING:
            distance = ahead[slot]
            key += distance
            slot += distance
            if slot >= slots:
                slot -= slots
            keys[count] = key
            count += 1
            hops += 1
        after[window] = hops
        ends[window] = flags[slot] & CLOSING
    return keys[:count], before, after, ends
