"""Quota of the tables of one owner, from the tokens file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from replay_server import errors


@dataclass(frozen=True)
class Quota:
    """Quota of the tables of one owner."""

    owner: str = ""
    """Name of the token that created them; empty: none."""
    max_tables: int | None = None
    """Maximum number of tables; None: the server's limit."""
    max_bytes: int | None = None
    """Maximum bytes of all tables when full; None: the server's limit."""

    def check(self, size: int, others: Sequence[int]) -> None:
        """Refuse a table beyond the quota.

        Args:
            size: bytes of the table when full, including its index.
            others: the same for each existing table of this owner.

        Raises:
            RequestError: TOO_LARGE.
        """
        of = f"of the token {self.owner!r}"
        tables, total = len(others) + 1, size + sum(others)
        if self.max_tables is not None and tables > self.max_tables:
            raise errors.too_large(f"tables {of}", self.max_tables, tables, f"max_tables {of}")
        if self.max_bytes is not None and total > self.max_bytes:
            raise errors.too_large(f"bytes of all tables when full, {of}", self.max_bytes, total, f"max_bytes {of}")
