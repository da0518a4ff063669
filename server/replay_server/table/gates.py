"""What stands between callers and the rows of a table: it grants draws and allows inserts.

    gate.grant(256)                             # samples a draw may have now, to be drawn or given back
    gate.insert_allowed(17)

Gates count and decide; `replay_server.flow.waiting` lets calls wait for them. What was drawn is part of the table's
state: a restart or a restore changes nothing. What was granted and not drawn yet goes with the calls that wait.
A table without a gate lets every insert in, and every draw out once it has a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from replay_server.errors import Lack
from replay_server.storage.header import Header


class Gate(ABC):
    """Decides when rows of a table may go out and come in."""

    def __init__(self, header: Header) -> None:
        """Go on from the state in ``header``."""
        self._header = header
        self._granted = 0

    @abstractmethod
    def check_draw(self, rows: int) -> None:
        """Refuse a draw that can never be allowed.

        Raises:
            RequestError: TOO_LARGE.
        """

    @abstractmethod
    def grant(self, rows: int) -> int:
        """Allow a draw some of its rows, or all; they are held for it until they are drawn or given back.

        Returns:
            How many, at most ``rows``.
        """

    def give_back(self, rows: int) -> None:
        """What was granted is not drawn after all."""
        self._granted -= rows

    @abstractmethod
    def count_drawn(self, rows: int) -> None:
        """A draw has been granted all its rows and is about to take them."""

    @abstractmethod
    def count_failed(self, rows: int) -> None:
        """A draw that was counted has failed: its rows were not handed out."""

    @abstractmethod
    def draw_lacks(self, rows: int, granted: int) -> Lack:
        """What a draw of so many rows waits for that was granted fewer."""

    @abstractmethod
    def check_insert(self, rows: int) -> None:
        """Refuse an insert that is not allowed now and may never be.

        Raises:
            RequestError: TOO_LARGE.
        """

    @abstractmethod
    def insert_allowed(self, rows: int) -> bool:
        """Whether so many rows may be inserted now."""

    @abstractmethod
    def insert_lacks(self, rows: int) -> Lack:
        """What inserts of so many rows in all, which are not allowed, wait for."""

    def reset(self) -> None:
        """The table is about to lose all its rows: nothing is granted any more."""
        self._granted = 0
