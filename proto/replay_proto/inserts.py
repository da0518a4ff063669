"""Constants shared by client and server for inserts."""

from __future__ import annotations

from typing import Final

MOST_ROWS_AT_ONCE: Final = 1 << 13
"""Maximum rows of one insert. The server is blocked while it makes them live, for about 10 ms in a ranked table."""
INSERT_BYTES: Final = 4 << 20
"""Maximum bytes of rows that the client library sends in one request, unless a single row is larger. Longer requests
would block the server's event loop, on which gRPC assembles them."""
