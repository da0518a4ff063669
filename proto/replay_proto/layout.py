"""Names and layout of the files of a table that clients on the server's host may read."""

from __future__ import annotations

HEADER_FILE = "header.bin"
"""The table's header: aligned int64 words."""
HEADER_WORDS = 8
WRITE_HORIZON = 0
"""Index of the header word with the key after the newest row that was written or is being written. A copy of row k is
intact if and only if k + slots is at least this key. The other words are private to the server."""


def column_file(index: int) -> str:
    """File name of the column at this position in the schema; column names are only in the manifest."""
    return f"column-{index:03d}.bin"
