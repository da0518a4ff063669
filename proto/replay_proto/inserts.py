"""What both ends know of inserts."""

from __future__ import annotations

from typing import Final

MOST_ROWS_AT_ONCE: Final = 1 << 13
"""Most rows of one insert: a table makes them live at once.

A server serves nobody else while it does: in a ranked table, for some 10 ms."""
