"""What both ends know of inserts."""

from __future__ import annotations

from typing import Final

MOST_ROWS_AT_ONCE: Final = 1 << 13
"""Most rows of one insert: a table makes them live at once.

A server serves nobody else while it does: in a ranked table, for some 10 ms."""
INSERT_BYTES: Final = 4 << 20
"""Rows of one request of the client library, unless a single one is larger: gRPC assembles a request on the server's
event loop."""
