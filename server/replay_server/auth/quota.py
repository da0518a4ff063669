"""What the tables of one owner may take, as the tokens file says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from replay_server import errors


@dataclass(frozen=True)
class Quota:
    """What the tables of one owner may take."""

    owner: str = ""
    """Name of the token by which they were made; empty: there is none."""
    max_tables: int | None = None
    """Tables at once; None: as many as the server takes."""
    max_bytes: int | None = None
    """Tables once they are full; None: as many as the server takes."""

    def check(self, size: int, others: Sequence[int]) -> None:
        """Refuse a table that is too large, or one too many.

        Args:
            size: bytes of the table once it is full, its index included.
            others: the same of each table of this owner.

        Raises:
            RequestError: TOO_LARGE.
        """
        of = f"of the token {self.owner!r}"
        tables, total = len(others) + 1, size + sum(others)
        if self.max_tables is not None and tables > self.max_tables:
            raise errors.too_large(f"tables {of}", self.max_tables, tables, f"max_tables {of}")
        if self.max_bytes is not None and total > self.max_bytes:
            raise errors.too_large(f"bytes of all tables when full, {of}", self.max_bytes, total, f"max_bytes {of}")
