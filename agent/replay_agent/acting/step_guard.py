"""Turns errors and hangs of an environment into errors that name it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

STEP_TIMEOUT_S: Final = 600.0
"""Default time limit of a step or a reset. A step may include a reset."""

_AT_ONCE_S: Final = 1e-6


class EnvironmentFailedError(RuntimeError):
    """The environment raised an error, hangs, or returned a number that is not finite."""


@contextmanager
def guarded(env_id: str, timeout_s: float = STEP_TIMEOUT_S) -> Iterator[None]:
    """Guard a step or a reset of the environment ``env_id``, which may take ``timeout_s`` seconds.

    A signal interrupts a step that takes too long. Python handles signals in the main thread only, and not while native
    code runs: a step in another thread, or one that hangs in native code, is not interrupted.

    Raises:
        EnvironmentFailedError: the environment raised an error, or the step took too long.
    """
    is_over = False

    def interrupt(*_: Any) -> None:
        if not is_over:
            raise EnvironmentFailedError(
                f"the environment {env_id} hangs: a step or a reset has taken {timeout_s:g} s (--step-timeout-s)"
            )

    is_main = threading.current_thread() is threading.main_thread()
    if is_main:
        # The caller's timer is stopped before its handler is replaced, and started after that is back.
        remaining_s, interval_s = signal.setitimer(signal.ITIMER_REAL, 0.0)
        earlier_handler = signal.signal(signal.SIGALRM, interrupt)
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    except EnvironmentFailedError:
        raise
    except Exception as error:
        raise EnvironmentFailedError(
            f"the environment {env_id} failed in a step or a reset: {type(error).__name__}: {error}"
        ) from error
    finally:
        is_over = True
        if is_main:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, earlier_handler)
            if remaining_s:  # the caller's own timer fires when it would have fired, or at once
                remaining_s = max(remaining_s - (time.monotonic() - began), _AT_ONCE_S)
                signal.setitimer(signal.ITIMER_REAL, remaining_s, interval_s)
