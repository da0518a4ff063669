"""Says what a call waits for, in one line of the log, once it has waited for `WARN_AFTER_S`.

    with LongWait("a sampler of table 't'", explain):
        ...                                         # waits, in any way; costs about a microsecond

A thread looks after all waits of the process. It calls ``explain`` only for those that last so long.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

from replay_proto.v1 import replay_pb2
from replay_proto.waits import waited_text

from replay_client._transport.call import Call, Operation
from replay_client.errors import DeadlineExceededError, ReplayError

log = logging.getLogger(__name__)

WARN_AFTER_S: Final = 10.0
"""Seconds after which a wait is logged."""
ASK_S: Final = 1.0
"""Time limit for asking a server what a call waits for."""
FOR_INSERTS: Final = frozenset({"inserts", "room", "turn"})
"""What inserts may wait for; see `LimitedError`."""
FOR_DRAWS: Final = frozenset({"rows", "windows", "samples"})
"""What draws may wait for."""
_POLL_S: Final = 0.5
_IDLE_LOOKS: Final = 40
"""Number of polls without any wait after which the thread ends."""


class LongWait:
    """See the module."""

    __slots__ = ("began", "explain", "heard_at", "is_told", "what")

    def __init__(self, what: str, explain: Callable[[float], str]) -> None:
        """``explain`` gets the seconds waited so far, and runs in another thread; ``what`` begins the line."""
        self.what = what
        self.explain = explain

    def __enter__(self) -> None:
        self.began = self.heard_at = time.monotonic()
        self.is_told = False
        _waits[id(self)] = self
        if _watch.thread is None:
            _watch.start()

    def __exit__(self, *_: object) -> None:
        _waits.pop(id(self), None)

    def heard(self) -> None:
        """Put the line off, because another line of the log has just said how far the wait is."""
        self.heard_at = time.monotonic()

    def tell(self) -> None:
        """Log the wait."""
        self.is_told = True
        waited_s = time.monotonic() - self.began
        try:
            log.warning("%s waits: %s", self.what, self.explain(round(waited_s)))
        except Exception:
            log.warning("%s has waited for %.0f s", self.what, waited_s, exc_info=True)


class _Watch:
    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self._guard = threading.Lock()

    def start(self) -> None:
        with self._guard:
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="replay-long-waits", daemon=True)
                self.thread.start()

    def _run(self) -> None:
        idle = 0
        while idle < _IDLE_LOOKS or not self._ends():
            time.sleep(min(_POLL_S, WARN_AFTER_S / 4))
            idle = 0 if _waits else idle + 1
            with suppress(MemoryError):  # the next poll may have some
                self._look()

    def _look(self) -> None:
        for wait in list(_waits.values()):
            if not wait.is_told and time.monotonic() - wait.heard_at >= WARN_AFTER_S:
                wait.tell()

    def _ends(self) -> bool:
        """Whether no wait began after the last poll; from now on, the next one starts another thread."""
        with self._guard:
            mine, self.thread = self.thread, None
            if _waits:
                self.thread = mine
            return not _waits


_waits: dict[int, LongWait] = {}
_watch = _Watch()


def _forget() -> None:
    """In a forked process, there is no thread, and nobody waits."""
    _waits.clear()
    _watch.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_forget)


def first_wait(table: str, kinds: Collection[str]) -> Operation[replay_pb2.WaitStats | None]:
    """Ask the server what the first waiting call of one of these kinds needs, in any client; None: nobody waits."""
    answer = yield Call("Stats", replay_pb2.StatsRequest(table=table).SerializeToString())
    tables = replay_pb2.StatsResponse.FromString(bytes(answer)).tables
    return next((wait for each in tables for wait in each.waits if wait.waited_for in kinds), None)


def waited_call(call: Call) -> tuple[str, Collection[str]]:
    """Return the table of a call that may wait for rows or room, and what for; nothing for other calls."""
    if call.method == "Sample":
        return replay_pb2.SampleRequest.FromString(call.request).table, FOR_DRAWS
    if call.method == "Insert":
        return replay_pb2.InsertRequest.FromString(call.request).table, FOR_INSERTS
    return "", ()


def explained(table: str, waited_s: float, found: replay_pb2.WaitStats | ReplayError | None) -> str:
    """Say what a call to a table has waited for, how far that is, and what would end it."""
    if found is None:
        return f"table {table!r}: waited {waited_s:g} s for an answer of the server, which is at work or overloaded"
    if isinstance(found, ReplayError):
        return f"table {table!r}: waited {waited_s:g} s for the server: {found}; this ends when it answers again"
    return waited_text(table, waited_s, found.waited_for, found.have, found.needed)


def too_late(
    refusal: DeadlineExceededError, table: str, waited_s: float, found: replay_pb2.WaitStats | ReplayError | None
) -> DeadlineExceededError:
    """Add to the error of a time limit what the call has waited for, in the words and fields of the server's error."""
    message = f"{explained(table, waited_s, found)}; {refusal.message}"
    if not isinstance(found, replay_pb2.WaitStats):
        return DeadlineExceededError(message, metadata={"table": table})
    fields = {"waited_for": found.waited_for, "have": str(found.have), "needed": str(found.needed)}
    return DeadlineExceededError(message, reason="WAITED_TOO_LONG", metadata={"table": table, **fields})
