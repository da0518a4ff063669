"""Handles Ctrl-C, SIGTERM and SIGHUP: the first signal requests a clean stop, the second one aborts."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)

STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest(threading.Event):
    """An event that requests a stop. Inside its ``with`` block, signals set it."""

    def __init__(self) -> None:
        super().__init__()
        self._earlier: dict[signal.Signals, Any] = {}
        self.signal: signal.Signals | None = None
        """The signal that requested the stop, if any."""

    def __enter__(self) -> StopRequest:
        """Install signal handlers. Does nothing outside the main thread, where Python forbids handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING_SIGNALS:
                if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue  # nohup ignores it
                self._earlier[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous handlers."""
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_set():
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        self.set()
        log.info("%s: stopping; repeat to abort", self.signal.name)
