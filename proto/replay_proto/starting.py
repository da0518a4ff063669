"""What a command does before it loads the rest of the program: it handles SIGTERM, silences gRPC, finds extras."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final


def exit_on_sigterm(status: int) -> None:
    """Exit with this status on SIGTERM, until the program handles the signal itself. Call it before slow imports.

    The kernel discards a signal that the first process of a container has no handler for.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        os._exit(status)  # libraries that are being imported would catch an exception

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)


EXIT_CTRL_C: Final = 130
"""By convention, the status of a program that SIGINT, which has the number 2, has stopped: 128 + 2."""


@contextmanager
def exits_on_ctrl_c(status: int = EXIT_CTRL_C) -> Iterator[None]:
    """Exit with this status on Ctrl-C inside the block: libraries that are being imported would catch an exception."""
    is_handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_handled and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(status))
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    else:
        yield


def quiet_grpc() -> None:
    """Turn off gRPC's logging, unless GRPC_VERBOSITY is set. Call it before importing gRPC.

    gRPC logs failed handshakes and refused calls, so unauthenticated clients could fill a disk. It raises important
    errors as exceptions anyway.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


_OWN: Final = "replay_"
"""Prefix of this project's packages."""


@contextmanager
def needs_extras(command: str, extras: str) -> Iterator[None]:
    """If a library is missing, print how to install a command's extras, such as ``server,agent``, and exit with 1."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(_OWN):
            raise
        sys.exit(f"{command}: {error.name} is not installed; in a clone, run: pip install '.[{extras}]'")
