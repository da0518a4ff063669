"""The context of a request and its stream: everything handlers know about the transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from replay_proto.errors import FieldError

from replay_server.auth.caller import Caller
from replay_server.errors import RequestError

T = TypeVar("T", str, bytes)


class Stream:
    """A stream of requests while it is open."""

    def __init__(self, end: Callable[[RequestError], None]) -> None:
        """Begin.

        Args:
            end: ends the stream with a refusal, after the answer that is being made, if any.
        """
        self.end = end
        """Ends the stream with a refusal, after the answer that is being made, if any."""
        self._said: dict[str, str | bytes] = {}
        self._when_closed: list[Callable[[], None]] = []

    @property
    def table(self) -> str:
        """Name of the table that its requests are about, once one has said so."""
        return str(self._said.get("table", ""))

    def constant(self, field: str, value: T) -> T:
        """The value of a field that later requests of a stream may leave out.

        Args:
            field: its name.
            value: what this request says; empty: nothing.

        Raises:
            FieldError: an earlier request said something else.
        """
        said = self._said.setdefault(field, value) or value
        if value and value != said:
            raise FieldError(field, f"the same as earlier on this stream ({said!r}), or nothing", repr(value))
        self._said[field] = said
        return said  # type: ignore[return-value]  # a field keeps its type

    def when_closed(self, do: Callable[[], None]) -> None:
        """Have something done once the stream has ended."""
        self._when_closed.append(do)

    def close(self) -> None:
        """The stream has ended."""
        while self._when_closed:
            self._when_closed.pop()()


class Call:
    """A request while it is answered."""

    def __init__(self, caller: Caller, stream: Stream | None = None) -> None:
        """Begin.

        Args:
            caller: who sent it.
            stream: what it came on; None: it is a call of its own.
        """
        self.caller = caller
        """Who sent it."""
        self._stream = stream
        self._when_sent: list[Callable[[], None]] = []

    @property
    def stream(self) -> Stream:
        """The stream that it came on."""
        if self._stream is None:
            raise RuntimeError("expected a request on a stream, got a unary call")
        return self._stream

    @property
    def stream_table(self) -> str:
        """The table that its stream has named before, if any."""
        return "" if self._stream is None else self._stream.table

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
