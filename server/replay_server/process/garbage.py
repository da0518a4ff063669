"""Decides when Python's garbage collector runs, because a full collection blocks all calls."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_LEAST_INTERVAL_S: Final = 0.5
_INTERVAL_PER_SQUARE: Final = 8000.0
"""This number, times the squared duration of a full collection in seconds, is the time until the next one in seconds:
0.8 s after 10 ms, 12 minutes after 0.3 s. So long collections do not affect the 99th percentile of calls."""
_MANY_CALLS: Final = 100
"""If so many more calls are open than one interval ago, a collection takes longer than the last one."""
_MOST_POSTPONED: Final = 10
"""Intervals for which a collection is postponed while calls begin: garbage of other calls must not pile up."""
_NEVER: Final = (1 << 31) - 1


@contextmanager
def loading() -> Iterator[None]:
    """Disable garbage collection in the block, and exempt all objects that exist at its end from later collections.

    Numba's modules contain 145,000 objects that never become garbage. Scanning them would take 0.1 s at startup and
    0.2 s at shutdown, and each scan in between would block all calls for 60 ms.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class RareCollections:
    """Full collections: often if they are short, rarely if they are long.

    A full collection blocks all calls, for 0.3 s if 10,000 streams are open. By default, Python runs one whenever the
    number of objects has grown by a quarter, so a client that opens many streams would cause several within seconds.
    But collections must not be too rare: gRPC keeps each call in a reference cycle, with up to 4 KB of metadata.
    Python's automatic collections of young objects continue, but they miss the cycles of longer calls.

    A collection waits while many calls begin. With 1,000 new calls it takes 80 ms on a busy machine, and while it
    blocks the event loop, nobody bounds what their messages take.
    """

    def __init__(self, open_calls: Callable[[], int], interval_s: float = _LEAST_INTERVAL_S) -> None:
        """Take over full collections from Python, until `close`; at most one every ``interval_s`` seconds."""
        self._open_calls = open_calls
        self._interval_s = interval_s
        self._thresholds = gc.get_threshold()
        self._took_s = 0.0
        gc.set_threshold(*self._thresholds[:2], _NEVER)

    async def collect(self) -> None:
        """Wait until the next full collection is due, and run it."""
        calls = self._open_calls()
        await asyncio.sleep(max(self._interval_s, _INTERVAL_PER_SQUARE * self._took_s**2))
        for _ in range(_MOST_POSTPONED):
            before, calls = calls, self._open_calls()
            if calls < before + _MANY_CALLS:
                break
            await asyncio.sleep(self._interval_s)
        began = time.perf_counter()
        gc.collect()
        self._took_s = time.perf_counter() - began

    def close(self) -> None:
        """Leave full collections to Python again."""
        gc.set_threshold(*self._thresholds)
