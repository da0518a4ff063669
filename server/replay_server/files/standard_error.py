"""Standard error, written by a thread of its own.

A write to a pipe blocks while its reader does not read, and a write to a file while its disk is busy. So the event loop
must not write: `STANDARD_ERROR` takes the place of `sys.stderr`, and all that the process says goes through it, the log
and tracebacks alike. It keeps a bounded number of texts; what does not fit is dropped and counted.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import select
import sys
import threading
from queue import SimpleQueue
from typing import Final

log = logging.getLogger(__name__)

MOST_TEXTS: Final = 4096
"""Maximum number of texts that wait to be written. A line of the log is one text."""
DRAIN_S: Final = 1.0
"""Time limit for writing what is left before the process exits."""
_DESCRIPTOR: Final = 2
_STREAMS: Final = (0, 1, 2)


class StandardError(io.TextIOBase):
    """A text stream that never blocks its caller."""

    def __init__(self, descriptor: int = _DESCRIPTOR) -> None:
        """Write nothing until `start`, and then to this file descriptor."""
        super().__init__()
        self.lines_dropped = 0
        """Lines that were not written, because too many waited or the descriptor could not be written to."""
        self._told = 0
        self._descriptor = descriptor
        # Both must be reentrant: the garbage collector may run a finalizer that writes, in the middle of a write.
        self._waiting: SimpleQueue[str | threading.Event] = SimpleQueue()
        self._counting = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="standard error", daemon=True)

    def start(self) -> None:
        """Take the place of `sys.stderr` until the process exits, and then write what is left, within `DRAIN_S`."""
        self._thread.start()
        sys.stderr = self
        atexit.register(self._end)

    def drain(self, within_s: float = DRAIN_S) -> bool:
        """Wait until all that was said so far is written or dropped; False if that took longer than ``within_s``."""
        written = threading.Event()
        self._waiting.put(written)
        return written.wait(within_s)

    def write(self, text: str) -> int:
        """Queue a text, or drop it if too many wait."""
        if self._waiting.qsize() < MOST_TEXTS:
            self._waiting.put(text)
        else:
            self._drop(text)
        return len(text)

    def writable(self) -> bool:
        """See `io.TextIOBase`."""
        return True

    def fileno(self) -> int:
        """See `io.TextIOBase`."""
        return self._descriptor

    def isatty(self) -> bool:
        """See `io.TextIOBase`."""
        return os.isatty(self._descriptor)

    def _run(self) -> None:
        while True:
            text = self._waiting.get()
            if isinstance(text, threading.Event):
                text.set()
                continue
            try:
                self._write_all(text.encode("utf-8", "backslashreplace"))
            except OSError:  # nobody will ever read it, or the disk is full
                self._drop(text)
            else:
                self._tell()

    def _write_all(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another process that shares the descriptor has made it non-blocking
                select.select([], [self._descriptor], [])

    def _tell(self) -> None:
        """Once most of the backlog is written, log how many lines are missing after it."""
        missing = self.lines_dropped - self._told
        if missing and self._waiting.qsize() < MOST_TEXTS // 2:
            self._told += missing
            log.warning(
                "%d lines of this log are missing here: standard error could not be written, or not fast enough",
                missing,
                extra={"lines": missing},
            )

    def _drop(self, text: str) -> None:
        with self._counting:
            self.lines_dropped += text.count("\n")

    def _end(self) -> None:
        if self.drain():
            sys.stderr = sys.__stderr__


STANDARD_ERROR: Final = StandardError()
"""That of this process."""


def open_closed_streams() -> None:
    """Open standard streams that are closed, to nowhere. Call this before opening anything else.

    Otherwise, the next file or socket would get their number, and whatever a library writes to standard error would
    end up in it.
    """
    for number in _STREAMS:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
