"""Refuses calls to an object while another call to it is running.

    caller = OneCaller("sampler")
    with caller.turn():                             # raises at once
        draw()

Without this check, two calls would mix up the object's state, or one would wait forever.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

from replay_client.errors import ConcurrentUseError


class OneCaller:
    """Refuses calls from another thread, another task of the same thread, or a signal handler; see the module."""

    def __init__(self, kind: str) -> None:
        """``kind`` names the object in errors."""
        self._kind = kind
        self._lock = threading.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether another caller is in a call."""
        return self._lock.locked()

    def turn(self) -> AbstractContextManager[object]:
        """Begin a call, in a ``with`` statement; raise `ConcurrentUseError` if another call is running.

        The result is the lock itself: Ctrl-C in the methods of a context manager in Python would leave it locked. Two
        threads that begin within a microsecond may both pass, and then take turns.
        """
        if self._lock.locked():
            raise ConcurrentUseError(
                f"another call to this {self._kind} is running: create a {self._kind} for each thread or task"
            )
        return self._lock
