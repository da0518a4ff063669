"""Files of a table's directory that a client on the server's host may read, and what lies in them."""

from __future__ import annotations

HEADER_FILE = "header.bin"
"""Aligned int64 words."""
HEADER_WORDS = 8
WRITE_HORIZON = 0
"""Word of the header: rows below this key may be being written. A copy of row k is whole iff k + slots >= it. The other
words are the server's own."""

NONCE_FILE = "nonce"
"""Random bytes: whoever echoes them can read the directory."""
NONCE_BYTES = 16


def column_file(index: int) -> str:
    """Name of the file of the column with this place in the schema; names stay in the manifest."""
    return f"column-{index:03d}.bin"
