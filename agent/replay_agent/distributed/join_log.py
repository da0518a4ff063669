"""Logs actors that join, with a limited number of lines per second."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

MAX_NAME_LENGTH: Final = 256
LINES_PER_S: Final = 20


class JoinLog:
    """Logs up to `LINES_PER_S` actors per second, and counts the others. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._second = -1
        self._lines = 0
        self._left_out = 0

    def note(self, actor_id: int, name: str) -> None:
        """Log an actor. Its name is untrusted and therefore escaped."""
        with self._lock:
            second = int(self._clock())
            if second != self._second:
                self._second, self._lines = second, 0
            self._lines += 1
            if self._lines > LINES_PER_S:
                self._left_out += 1
                return
            left_out, self._left_out = self._left_out, 0
        others = f", after {left_out} others" if left_out else ""
        log.info("actor %d joined: %r%s", actor_id, name[:MAX_NAME_LENGTH], others)
