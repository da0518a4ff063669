"""Handles SIGTERM while a program is still loading."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


def exit_on_sigterm(status: int) -> None:
    """Exit with this status on SIGTERM, until the program handles the signal itself. Call it before slow imports.

    The kernel discards a signal that the first process of a container has no handler for.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        os._exit(status)  # libraries that are being imported would catch an exception

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)
