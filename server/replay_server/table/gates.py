"""Gates of a table, which grant rows to draws and allow inserts.

    gate.grant(256)                             # returns the rows granted now: draw them or give them back
    gate.insert_allowed(17)

Gates count and decide; `replay_server.flow.waiting` lets calls wait for them. The count of drawn rows is part of the
table's state and survives a restart or restore. Rows granted but not yet drawn are tracked only in memory.

Without a gate, a table allows every insert, and every draw once it has a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from replay_server.errors import Lack
from replay_server.storage.header import Header


class Gate(ABC):
    """Decides when rows may be drawn and inserted."""

    def __init__(self, header: Header) -> None:
        """Continue from the state in ``header``."""
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
        """Grant a draw some or all of its rows, which stay reserved until they are drawn or given back.

        Returns:
            Number of granted rows, at most ``rows``.
        """

    def give_back(self, rows: int) -> None:
        """Return granted rows that will not be drawn."""
        self._granted -= rows

    @abstractmethod
    def count_drawn(self, rows: int) -> None:
        """Count a draw that was granted all its rows and is about to take them."""

    @abstractmethod
    def count_failed(self, rows: int) -> None:
        """Handle the failure of a counted draw, whose rows were not handed out."""

    @abstractmethod
    def draw_lacks(self, rows: int, granted: int) -> Lack:
        """Return what a draw lacks."""

    @abstractmethod
    def check_insert(self, rows: int) -> None:
        """Refuse an insert that may never be allowed.

        Raises:
            RequestError: TOO_LARGE.
        """

    @abstractmethod
    def insert_allowed(self, rows: int) -> bool:
        """Whether this many rows may be inserted now."""

    @abstractmethod
    def insert_lacks(self, rows: int) -> Lack:
        """Return what waiting inserts with this many rows in total lack."""

    def reset(self) -> None:
        """Drop all grants, because the table is about to be reset."""
        self._granted = 0
