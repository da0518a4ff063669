"""Refuses calls to an object while another call to it is running.

    caller = OneCaller("sampler")
    with caller:                                    # raises at once, never waits
        draw()

Without this check, two calls would mix up the object's state, or one would wait forever.
"""

from __future__ import annotations

import threading

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

    def __enter__(self) -> None:
        """Begin a call.

        Raises:
            ConcurrentUseError: another call is running.
        """
        if not self._lock.acquire(False):  # by position, which costs half as much
            raise ConcurrentUseError(
                f"another call to this {self._kind} is running: create a {self._kind} for each thread or task"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()
