"""Ids and sequence numbers of the inserts that `Table.insert` makes.

A server applies the inserts of one writer in the order of their sequence, so each insert under way needs a writer id of
its own: one that waits would hold up the others. Ids are used again, because a server remembers a limited number of
writers per table.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from replay_client.errors import ReplayError

WRITER_ID_BYTES: Final = 16
_WITHOUT_EFFECT: Final = frozenset({"LIMITED", "WAITED_TOO_LONG", "TABLE_RESET"})
"""Reasons of refusals that leave an insert's sequence number unused."""


class InsertId:
    """A writer id, and the sequence number of its next insert."""

    def __init__(self) -> None:
        """Begin with an id that nobody has."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Take an id that nobody has."""
        self.writer_id = secrets.token_bytes(WRITER_ID_BYTES)
        self.sequence = 1


class InsertIds:
    """A pool with one id per concurrent insert. Threads may share it."""

    def __init__(self) -> None:
        """Begin without any."""
        self._idle: list[InsertId] = []  # `append` and `pop` are atomic

    @contextmanager
    def lend(self) -> Iterator[InsertId]:
        """An id for one insert; if its outcome is unknown, so is its next sequence number, and it is thrown away."""
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
