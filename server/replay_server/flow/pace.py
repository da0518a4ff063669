"""Advises writers how often to send, so that many writers do not flood the server with small messages."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

MESSAGES_PER_S: Final = 500.0
"""Messages per second that all writers together should send. Handling them takes about a fifth of a core."""


class WriterPace:
    """Advises writers how long to collect rows before they send them.

    The advised time is proportional to the number of writers that were active in the last second or two.
    """

    def __init__(self) -> None:
        self._second = 0
        self._active: set[Hashable] = set()  # in this second
        self._active_before = 0  # number in the previous second

    def delay_s(self, writer: Hashable, now_s: float) -> float:
        """Record a message of a writer; return for how many seconds it should collect rows for its next message."""
        second = int(now_s)
        if second != self._second:
            self._active_before = len(self._active) if second == self._second + 1 else 0
            self._active.clear()
            self._second = second
        self._active.add(writer)
        return max(self._active_before, len(self._active)) / MESSAGES_PER_S
