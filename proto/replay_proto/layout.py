"""Files of a table's directory that a client on the server's host may read, and what lies in them."""

from __future__ import annotations

HEADER_FILE = "header.bin"
"""Aligned int64 words."""
HEADER_WORDS = 8
WRITE_HORIZON = 0
"""Word of the header: rows below this key may be being written. A copy of row k is whole iff k + slots >= it."""
INSERTED = 1
"""Word of the header: rows ever inserted and committed."""
RESET_FLOOR = 2
"""Word of the header: no key below this is live."""
LOST = 4
"""Word of the header: amid a recovery after a loss of power, rows lost ever; so that the next one, should this one be
cut short, does not count them twice."""
SYNC_FAILED = 5
"""Word of the header: 1 if the disk refused to take something since the last sync point."""
DELIVERED = 6
"""Word of the header: how often rows of a queue went out, counted by key; see `replay_server.gates.QueueGate`."""
SAMPLED = 7
"""Word of the header: rows drawn since the table was made or reset, if it has a rate limiter."""

NONCE_FILE = "nonce"
"""Random bytes: whoever echoes them can read the directory."""
NONCE_BYTES = 16


def column_file(index: int) -> str:
    """Name of the file of the column with this place in the schema; names stay in the manifest."""
    return f"column-{index:03d}.bin"
