"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 30.0
_INTERVAL_S = 0.01


def wait_until(holds: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until ``holds()`` is true; fail with ``what`` on timeout."""
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, f"waited {patience_s} s in vain until {what}"
        time.sleep(_INTERVAL_S)
