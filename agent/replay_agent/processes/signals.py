"""Ctrl-C and SIGTERM: the first asks for a clean stop, the second breaks off."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

log = logging.getLogger(__name__)

STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether somebody asked to stop. In a ``with`` block it listens to signals."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._earlier: dict[signal.Signals, Any] = {}
        self.signal: signal.Signals | None = None
        """Which signal asked, if one did."""

    def is_set(self) -> bool:
        """Whether to stop."""
        return self._event.is_set()

    def set(self) -> None:
        """Ask to stop."""
        self._event.set()

    def __enter__(self) -> StopRequest:
        """Listen; does nothing outside the main thread, which alone may."""
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING_SIGNALS:
                self._earlier[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave signals to whoever had them before."""
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        self._earlier.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._event.is_set():
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        self._event.set()
        log.info("%s: stopping; once more breaks off", self.signal.name)
