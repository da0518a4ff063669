"""Provides writer ids and sequence numbers for `Table.insert`.

A server applies the inserts of one writer in sequence, so an insert that waits blocks later ones with the same id.
Therefore, concurrent inserts use different writer ids. Ids are reused, because a server remembers only a limited number
of writers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from replay_client.errors import ReplayError

WRITER_ID_BYTES: Final = 16
_WITHOUT_EFFECT: Final = frozenset({"LIMITED", "WAITED_TOO_LONG", "TABLE_RESET"})
"""Reasons of refusals after which the sequence number can be used again, because the insert had no effect."""


class InsertId:
    """A writer id, and the sequence number of its next insert."""

    def __init__(self, writer_id: bytes = b"", sequence: int = 1) -> None:
        """Use an id of `WRITER_ID_BYTES`; empty: a random one."""
        self.writer_id = writer_id or secrets.token_bytes(WRITER_ID_BYTES)
        self.sequence = sequence

    def begin_anew(self) -> None:
        """Switch to a new random id."""
        self.writer_id = secrets.token_bytes(WRITER_ID_BYTES)
        self.sequence = 1


class InsertIds:
    """A pool with one id per concurrent insert. Thread-safe."""

    def __init__(self) -> None:
        self._idle: list[InsertId] = []  # `append` and `pop` are atomic

    @contextmanager
    def lend(self) -> Iterator[InsertId]:
        """Lend an id for one insert. If the outcome of the insert is unknown, the id is discarded."""
        try:
            lent = self._idle.pop()
        except IndexError:
            lent = InsertId()
        try:
            yield lent
        except ReplayError as error:
            if error.attempts == 1 and error.reason in _WITHOUT_EFFECT:
                self._idle.append(lent)
            raise
        lent.sequence += 1
        self._idle.append(lent)
