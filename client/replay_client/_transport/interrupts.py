"""Waits that Ctrl-C ends in the main thread.

    while not ready():
        wait_for_change(condition, left_s)

Python runs signal handlers in the main thread, between two of its own instructions. A signal that arrives just before a
thread blocks in the system does not wake it up. So the main thread never blocks for long at once.
"""

from __future__ import annotations

import threading
from typing import Final

NOTICED_S: Final = 0.2
"""After this many seconds of a wait, the main thread runs the handlers of signals that arrived when the wait began."""


def blocks_for_s(left_s: float | None) -> float | None:
    """Return how many of the remaining seconds this thread may block at once; None: without limit."""
    if threading.current_thread() is not threading.main_thread():
        return left_s
    return NOTICED_S if left_s is None else min(left_s, NOTICED_S)


def wait_for_change(changed: threading.Condition, left_s: float | None) -> None:
    """Wait for a notification, but in the main thread only for a moment; so call this in a loop."""
    try:
        changed.wait(blocks_for_s(left_s))
    except BaseException:
        try:
            changed.notify(0)
        except RuntimeError:  # Ctrl-C came while the lock was released; the caller releases it again
            changed.acquire()
        raise
