"""Results of exports and imports."""

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
