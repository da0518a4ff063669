"""Counts the open streams of each client of a table, and the rows that the client inserts or draws.

    client = clients.join("token actors", "writer")     # a stream opens
    client.rows += 64                                   # it sends rows
    clients.leave(client)                               # it ends

Every message is counted, so counting must be cheap. Rates are computed from marks, which `History.tick` sets.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from replay_server.table.rates import WINDOW_S

Role = Literal["writer", "learner"]


class _Mark(NamedTuple):
    at_s: float
    rows: int
    updates: int


class ClientRates(NamedTuple):
    """Rates of a client over the last minute, or since its first stream opened if that is shorter."""

    rows_per_s: float
    updates_per_s: float


class Client:
    """All open streams of one caller in one role."""

    def __init__(self, caller: str, role: Role, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without streams. ``role`` says what they are for; ``clock`` is a monotonic clock in seconds."""
        self.caller = caller
        self.role = role
        self.streams = 0
        """Number of open streams."""
        self.rows = 0
        """Rows inserted by a writer, or drawn by a learner, since the first of these streams opened."""
        self.updates = 0
        """Priorities set by a learner."""
        self._clock = clock
        self._marks = deque([_Mark(clock(), 0, 0)], maxlen=WINDOW_S + 1)

    def mark(self) -> None:
        """Remember the current counts; call this once per second."""
        self._marks.append(_Mark(self._clock(), self.rows, self.updates))

    def rates(self) -> ClientRates:
        """Return the rates since the oldest mark."""
        began, rows, updates = self._marks[0]
        passed_s = self._clock() - began
        return ClientRates((self.rows - rows) / passed_s, (self.updates - updates) / passed_s) if passed_s else _NONE


_NONE = ClientRates(0.0, 0.0)


class Clients:
    """The clients of one table."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, Role], Client] = {}

    def __iter__(self) -> Iterator[Client]:
        """Iterate over clients with open streams."""
        return iter([*self._open.values()])

    def join(self, caller: str, role: Role) -> Client:
        """Count a stream as open; return the client that it belongs to."""
        client = self._open.get((caller, role))
        if client is None:
            client = self._open[caller, role] = Client(caller, role)
        client.streams += 1
        return client

    def leave(self, client: Client) -> None:
        """Count a stream as closed."""
        client.streams -= 1
        if not client.streams:
            del self._open[client.caller, client.role]
