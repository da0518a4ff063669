"""Refuses calls to an object while another one is running, which would mix up their state or wait for ever.

self._one_caller = OneCaller("sampler", threading.RLock())

with self._one_caller:                          # raises at once, never waits
...
"""

from __future__ import annotations

import threading

from replay_client.errors import ConcurrentUseError


class OneCaller:
    """See the module. With a `threading.Lock`, it also refuses another task of the same thread."""

    def __init__(self, kind: str, lock: threading.Lock | threading.RLock) -> None:
        """``kind`` names the object in errors. With an `RLock`, a call may make other calls."""
        self._kind = kind
        self._lock = lock

    @property
    def is_busy(self) -> bool:
        """Whether another caller is in a call."""
        is_free = self._lock.acquire(blocking=False)
        if is_free:
            self._lock.release()
        return not is_free

    def __enter__(self) -> None:
        """Begin a call.

        Raises:
            ConcurrentUseError: another call is running.
        """
        if not self._lock.acquire(blocking=False):
            raise ConcurrentUseError(
                f"another call to this {self._kind} is running: create a {self._kind} for each thread or task"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()
