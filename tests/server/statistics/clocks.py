"""A manually set clock."""

from __future__ import annotations


class SetClock:
    """Tells the time it was set to."""

    def __init__(self, now: float = 1000.25) -> None:
        """Begin at some time."""
        self.now = now

    def __call__(self) -> float:
        """Seconds."""
        return self.now
