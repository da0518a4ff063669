"""The context of a request: what its handler knows about the caller, the stream and the reply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from replay_proto.errors import FieldError

from replay_server import errors
from replay_server.auth import Caller
from replay_server.errors import RequestError
from replay_server.flow.bounds import Bounds
from replay_server.flow.budgets import Budget
from replay_server.table.clients import Client, Clients, Role
from replay_server.table.table import Table

T = TypeVar("T", str, bytes)


class Stream:
    """An open stream of requests."""

    def __init__(self, end: Callable[[RequestError], None]) -> None:
        self.end = end
        """Ends the stream with a refusal. If a reply is in progress, it is sent first."""
        self._said: dict[str, str | bytes] = {}
        self._when_closed: list[Callable[[], None]] = []
        self._clients: Clients | None = None
        self._client: Client | None = None

    @property
    def table(self) -> str:
        """Name of the stream's table; empty until a request has named it."""
        return str(self._said.get("table", ""))

    def constant(self, field: str, value: T) -> T:
        """Return the value of a field that must not change on a stream.

        An empty value means that the request omits the field: then the earlier value holds.
        """
        said = self._said.setdefault(field, value) or value
        if value and value != said:
            raise FieldError(field, f"the same as earlier on this stream ({said!r}), or nothing", repr(value))
        self._said[field] = said
        return said  # type: ignore[return-value]  # the type of a field never changes

    def client(self, table: Table, caller: Caller, role: Role) -> Client:
        """Return the client that this stream counts for in the statistics of ``table``.

        From the first call of this method, the stream counts as open until it ends or moves to another table.
        """
        if self._client is None or self._clients is not table.figures.clients:
            self._leave()
            self._clients = table.figures.clients
            self._client = self._clients.join(caller.identity, role)
        return self._client

    def _leave(self) -> None:
        if self._clients is not None and self._client is not None:
            self._clients.leave(self._client)
        self._clients = self._client = None

    def when_closed(self, do: Callable[[], None]) -> None:
        """Register a callback for the end of the stream."""
        self._when_closed.append(do)

    def close(self) -> None:
        """Run the callbacks. Called when the stream has ended."""
        self._leave()
        while self._when_closed:
            self._when_closed.pop()()


class Call:
    """The context of a request."""

    def __init__(self, caller: Caller, stream: Stream | None = None) -> None:
        """Create the context of a request on a stream, or of a unary call if there is no ``stream``."""
        self.caller = caller
        self._stream = stream
        self._when_sent: list[Callable[[], None]] = []

    @property
    def stream(self) -> Stream:
        """The stream of the request."""
        if self._stream is None:
            raise RuntimeError("expected a request on a stream, got a unary call")
        return self._stream

    @property
    def stream_table(self) -> str:
        """The table named by an earlier request on the stream; empty if there is none."""
        return "" if self._stream is None else self._stream.table

    @property
    def holds_something(self) -> bool:
        """Whether any callbacks are registered with `when_sent`."""
        return bool(self._when_sent)

    def when_sent(self, do: Callable[[], None]) -> None:
        """Register a callback that runs when the reply has been sent, or could not be sent."""
        self._when_sent.append(do)

    def sent(self) -> None:
        """Run the callbacks. Called when the reply has been sent, or could not be sent."""
        while self._when_sent:
            self._when_sent.pop()()


class OpenStreams:
    """Counts and limits open streams per connection, per caller and in total."""

    def __init__(self, bounds: Bounds) -> None:
        self._most = bounds.max_streams_per_connection
        self._open: Counter[str] = Counter()
        self._of_callers = Budget("streams", "max_streams of the server", bounds.max_streams, bounds.caller_share)

    @contextmanager
    def one_more(self, connection: str, caller: str) -> Iterator[None]:
        """Count a stream as open inside the block; refuse it if there are too many."""
        if self._open[connection] >= self._most:
            setting = "max_streams_per_connection of the server"
            raise errors.too_large("streams of one connection", self._most, self._open[connection] + 1, setting)
        self._open[connection] += 1
        try:
            with self._of_callers.held(caller):
                yield
        finally:
            self._open[connection] -= 1
            if not self._open[connection]:
                del self._open[connection]
