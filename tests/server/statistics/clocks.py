"""A manually set clock."""

from __future__ import annotations


class SetClock:
    """A clock that returns the time to which it was set."""

    def __init__(self, now: float = 1000.25) -> None:
        """Start at a time in seconds."""
        self.now = now

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now
