"""Work that takes long, in a thread: it logs how far it is, and ends early if the server is stopped."""

from __future__ import annotations

import logging
import threading
import time

from replay_server.errors import StoppedError

log = logging.getLogger(__name__)

_SAY_S = 10.0


class LongWork:
    """The progress of some work on files."""

    def __init__(self, what: str, stopped: threading.Event | None = None) -> None:
        """Begin the work, which ``what`` names in the log. Setting ``stopped`` ends it early."""
        self._what = what
        self._stopped = stopped or threading.Event()
        self._began = self._said = time.monotonic()
        self._done = 0
        self.total_bytes = 0
        """Bytes to be handled."""

    def advance(self, size: int) -> None:
        """Count bytes that have been handled, and log the progress every few seconds; `StoppedError` ends the work."""
        if self._stopped.is_set():
            raise StoppedError(self._what)
        self._done += size
        now = time.monotonic()
        if now - self._said >= _SAY_S:
            self._said = now
            log.info(
                "%s: %.1f of %.1f GB after %.0f s; SIGTERM ends it",
                *(self._what, self._done / 1e9, self.total_bytes / 1e9, now - self._began),
            )
