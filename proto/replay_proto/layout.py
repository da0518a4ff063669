"""What client and server agree on beside the protocol: files of tables that clients read, and sizes of inserts."""

from __future__ import annotations

from typing import Final

HEADER_FILE = "header.bin"
"""The table's header: aligned int64 words."""
HEADER_WORDS = 8
WRITE_HORIZON = 0
"""Index of the header word with the key after the newest row that was written or is being written. A copy of row k is
intact if and only if k + slots is at least this key. The other words are private to the server."""
VERSIONS_FILE: Final = "versions.bin"
"""Only in tables with mutable columns: the version of each slot, int64; see `SameHost` in `replay.proto`."""
VERSION_BYTES: Final = 8


def column_file(index: int, *, is_mutable: bool = False) -> str:
    """File name of the column at this position in the schema; column names are only in the manifest.

    A mutable column has another name, so that a client that does not know of versions does not find it.
    """
    return f"{'mutable' if is_mutable else 'column'}-{index:03d}.bin"


MOST_ROWS_AT_ONCE: Final = 1 << 13
"""Maximum rows of one insert. The server is blocked while it makes them live, for about 10 ms in a ranked table."""
INSERT_BYTES: Final = 4 << 20
"""Maximum bytes of rows that the client library sends in one request, unless a single row is larger. Longer requests
would block the server's event loop, on which gRPC assembles them."""
