"""Provides ids and sequence numbers for requests that a server must not apply twice: inserts, and draws from a queue.

A server applies the inserts of one writer in sequence, so an insert that waits blocks later ones with the same id. And
each draw of a reader says that it has received the one before. Therefore, concurrent requests use different ids. Ids
are reused, because a server remembers only a limited number of writers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from replay_client.errors import ReplayError

SENDER_ID_BYTES: Final = 16
_WITHOUT_EFFECT: Final = frozenset({"LIMITED", "TABLE_EMPTY", "TABLE_RESET", "WAITED_TOO_LONG"})
"""Reasons of refusals after which the sequence number can be used again, because the request had no effect."""


class RequestId:
    """A sender's id, and the sequence number of its next request."""

    def __init__(self, sender_id: bytes = b"", sequence: int = 1) -> None:
        """Use an id of `SENDER_ID_BYTES`; empty: a random one."""
        self.sender_id = sender_id or secrets.token_bytes(SENDER_ID_BYTES)
        self.sequence = sequence

    def begin_anew(self) -> None:
        """Switch to a new random id."""
        self.sender_id = secrets.token_bytes(SENDER_ID_BYTES)
        self.sequence = 1


class RequestIds:
    """A pool with one id per concurrent request. Thread-safe."""

    def __init__(self) -> None:
        self._idle: list[RequestId] = []  # `append` and `pop` are atomic

    @contextmanager
    def lend(self) -> Iterator[RequestId]:
        """Lend an id for one request. If the outcome of the request is unknown, the id is discarded."""
        try:
            lent = self._idle.pop()
        except IndexError:
            lent = RequestId()
        try:
            yield lent
        except ReplayError as error:
            if error.attempts == 1 and error.reason in _WITHOUT_EFFECT:
                self._idle.append(lent)
            raise
        lent.sequence += 1
        self._idle.append(lent)
