"""Format of what a server stores: names of files, versions, and sizes.

A table's columns and header, which clients on the same host read, are in `replay_proto.layout`, and ranges of numbers
in `replay_server.storage.ranges`.
"""

from __future__ import annotations

from typing import Final

UID_BYTES: Final = 16
"""Length of the random ids of tables, shard maps and servers."""

TABLE_MANIFEST_FILE: Final = "manifest.json"
PRIORITIES_FILE: Final = "priorities.bin"
"""Also in checkpoints, where it has only the live rows."""
PRIORITY_BYTES: Final = 8
WRITERS_FILE: Final = "writers.bin"
"""Also in checkpoints."""
DELIVERIES_FILE: Final = "deliveries.bin"
"""Only in queues."""
CHECKSUMS_FILE: Final = "checksums.bin"
CHECKSUM_BYTES: Final = 16
"""Bytes per row."""
PLACE_CHECKSUMS_FILE: Final = "place_checksums.bin"
"""Of the values of mutable columns, which have two places in each slot."""
PLACE_CHECKSUM_BYTES: Final = 16
"""Bytes per slot."""
SYNC_POINT_FILE: Final = "synced.bin"
SHARD_MAP_FILE: Final = "shards.json"
CHECKPOINT_MANIFEST_FILE: Final = "_checkpoint.json"
"""Name of the file, next to the tables' folders. No table has a name that begins with an underscore."""

TABLE_VERSION: Final = 3
CHECKED_TABLE_VERSION: Final = 4
"""Version of tables with checksums: a server that does not maintain checksums must not open them."""
STEPS_TABLE_VERSION: Final = 5
CHECKED_STEPS_TABLE_VERSION: Final = 6
MUTABLE_TABLE_VERSION: Final = 7
"""Version of tables with mutable columns, with or without steps."""
CHECKED_MUTABLE_TABLE_VERSION: Final = 8
CHECKED_VERSIONS: Final = (CHECKED_TABLE_VERSION, CHECKED_STEPS_TABLE_VERSION, CHECKED_MUTABLE_TABLE_VERSION)
TABLE_VERSIONS: Final = range(TABLE_VERSION, CHECKED_MUTABLE_TABLE_VERSION + 1)
CHECKPOINT_VERSION: Final = 2
