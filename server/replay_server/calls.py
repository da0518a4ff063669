"""The call that the task at work serves: whose it is, and what it holds until it is answered."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final


class Call:
    """A call; on a stream, one message after the other."""

    def __init__(self, caller: str) -> None:
        """Begin; ``caller`` is what `access.caller.Caller.identity` says."""
        self.caller = caller
        self._when_sent: list[Callable[[], None]] = []

    @property
    def holds_something(self) -> bool:
        """Whether there is something to do once the answer was sent."""
        return bool(self._when_sent)

    def when_sent(self, do: Callable[[], None]) -> None:
        """Have something done once the answer was sent, or never will be."""
        self._when_sent.append(do)

    def sent(self) -> None:
        """The answer was sent, or never will be."""
        while self._when_sent:
            self._when_sent.pop()()


_CALL: Final[ContextVar[Call | None]] = ContextVar("call", default=None)


def begin_call(caller: str) -> Call:
    """From now on the task at work serves a call of this caller."""
    call = Call(caller)
    _CALL.set(call)
    return call


def call_at_work() -> Call | None:
    """The call that the task at work serves; None outside of any."""
    return _CALL.get()
