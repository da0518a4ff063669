"""Ends what works in the background for an object that nobody closed, as Python does for files.

    self._lease = Lease(work)               # held by the object, and by whatever else may use the work
    finish_at_exit(work)

When the last holder of the lease is collected, a `ResourceWarning` is issued, and the work is finished. When the
interpreter exits, all unclosed work is finished within `EXIT_S`. On an event loop, work ends with the loop instead.

Background threads must refer to the work, and never to the lease or its holders.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Final, Protocol

log = logging.getLogger(__name__)

FINISH_S: Final = 5.0
"""Seconds in which unclosed work may be finished after its holders were collected, or its client was closed."""
EXIT_S: Final = 5.0
"""Seconds that the exit of the interpreter waits for all unclosed work together."""
_LAST_LOOK_S: Final = 0.2


class Work(Protocol):
    """Work in the background for a writer or a sampler."""

    @property
    def title(self) -> str:
        """What is unclosed, for warnings."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to finish: it never began, was closed, or belongs to a parent process."""
        ...

    def dropped(self) -> None:
        """Finish without waiting. Runs wherever the collector does, even while a lock of the work is held."""
        ...


class ThreadedWork(Work, Protocol):
    """Work of threads."""

    def deliver(self, deadline: float) -> None:
        """Deliver what is left; give up at the deadline."""
        ...

    def finish(self, deadline: float) -> None:
        """Deliver what is left until the deadline, close, and log what was lost."""
        ...


class Lease:
    """See the module."""

    def __init__(self, work: Work) -> None:
        weakref.finalize(self, _dropped, work).atexit = False


_unclosed: weakref.WeakSet[ThreadedWork] = weakref.WeakSet()
_watched: list[int] = []  # the processes, this one and those that it was forked from, whose exits are watched
_guard = threading.Lock()


def finish_at_exit(work: ThreadedWork) -> None:
    """Finish the work when the interpreter exits, unless it is done by then."""
    _unclosed.add(work)
    _watch_exit()


def finish_in_thread(work: ThreadedWork) -> None:
    """Finish the work without waiting for it."""
    try:
        threading.Thread(
            target=work.finish, args=(time.monotonic() + FINISH_S,), name="replay-finishes", daemon=True
        ).start()
    except RuntimeError as error:
        if not work.is_done:  # otherwise, the interpreter is exiting, and has finished all work
            log.warning("an unclosed %s is finished at the end of the process: %s", work.title, error)


def _dropped(work: Work) -> None:
    if not work.is_done:
        warnings.warn(f"unclosed {work.title}", ResourceWarning, stacklevel=2)
        work.dropped()


def _watch_exit() -> None:
    with _guard:
        if os.getpid() in _watched:
            return
        _watched.append(os.getpid())
    # Once atexit's functions run, no thread can be started, so no stream can be opened (Python 3.12 and later).
    # Therefore, rows are delivered as soon as the main thread has ended, and what other threads add, at the very end.
    threading.Thread(target=_deliver_all, name="replay-exit").start()
    atexit.register(_finish_all)


def _deliver_all() -> None:
    threading.main_thread().join()
    _deliver_all_left()


def _deliver_all_left() -> None:
    deadline = time.monotonic() + EXIT_S
    for work in _left():
        _tried(work, work.deliver, deadline)


def _finish_all() -> None:
    for work in _left():
        _tried(work, work.finish, time.monotonic() + _LAST_LOOK_S)


def _tried(work: Work, end: Callable[[float], None], deadline: float) -> None:
    """Do a part of some work's end; if it fails, log why, so that other work is finished all the same."""
    try:
        end(deadline)
    except Exception:
        log.exception("an unclosed %s could not be finished", work.title)


def _left() -> list[ThreadedWork]:
    return [work for work in list(_unclosed) if not work.is_done]
