"""Results of exports, imports and copies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exported:
    """Rows that were written to a file."""

    rows: int
    """Number of rows in the file."""
    inserted: int
    """Rows ever inserted into the table when the export began. Rows inserted later are not in the file."""
    overtaken: int
    """Number of rows that were live at that time, but were evicted or reset before they could be read."""


@dataclass(frozen=True)
class Loaded:
    """Rows that were inserted from a file."""

    rows: int
    """Number of rows inserted."""
    first_key: int | None
    """Key of the first row; None if the file has no rows. Later rows have the next keys, unless others insert, too."""


@dataclass(frozen=True)
class Copied:
    """A table that was copied to another service."""

    table: str
    """Name of the table."""
    rows: int
    """Live rows of the source when the copy began."""
    found: int
    """Number of them that an earlier run had copied."""
    overtaken: int
    """Number of them that the source evicted or reset before they could be read; they are missing."""
    evicted: int
    """Number of them, the oldest, that did not fit into their servers' shares of the capacity and were evicted."""
