"""Gates of a table, which grant rows to draws and allow inserts.

    granted = gate.grant(256)                   # up to 256 rows: draw them, or give them back
    if gate.insert_allowed(17):
        ...                                     # insert 17 rows

Gates only decide; calls wait in `replay_server.flow.admission`. The count of drawn rows is part of the state of the
table, and survives a restart or restore. Rows granted but not yet drawn are tracked only in memory.

A table without a gate allows every insert, and every draw if it has any rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from replay_server.errors import Lack
from replay_server.storage.header import Header
from replay_server.table.items.items import Items


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
        """Take back granted rows that will not be drawn."""
        self._granted -= rows

    @abstractmethod
    def count_drawn(self, rows: int) -> None:
        """Count the rows of a draw once all of them are granted and the draw may run."""

    @abstractmethod
    def count_failed(self, rows: int) -> None:
        """Handle the failure of a draw whose rows were counted, but not handed out."""

    @abstractmethod
    def draw_lacks(self, rows: int, granted: int) -> Lack:
        """Return what a draw of ``rows`` rows lacks; ``granted`` of them are granted already."""

    @abstractmethod
    def check_insert(self, rows: int) -> None:
        """Refuse an insert that might never be allowed.

        Raises:
            RequestError: TOO_LARGE.
        """

    @abstractmethod
    def insert_allowed(self, rows: int) -> bool:
        """Whether this many rows may be inserted now."""

    @abstractmethod
    def insert_lacks(self, rows: int) -> Lack:
        """Return what waiting inserts lack; ``rows`` is the total number of their rows."""

    def begin_anew(self, items: Items) -> None:
        """Forget all grants, because the table is being reset. ``items`` count its drawable rows from now on."""
        self._granted = 0
