"""Default values of settings."""

DEFAULT_BACKEND = "sum_tree"
"""Backend of a table."""
DEFAULT_SYNC_EVERY_S = 1.0
"""Seconds of inserts that a power loss may lose, with durability power."""
DEFAULT_MAX_WAITING = 16_384
"""Maximum waiting calls."""
DEFAULT_MAX_WAITING_BYTES = 1 << 30
"""Maximum bytes of rows in waiting inserts."""
DEFAULT_CALLER_SHARE = 0.5
"""Fraction of a shared budget that one caller may use: a single caller cannot exhaust it, and a fleet with one token,
or on one machine, still has plenty."""
DEFAULT_MAX_OUTGOING_BYTES = 2 << 30
"""Bytes of replies being built or sent: half of it holds 35 batches of 256 Atari transitions."""
DEFAULT_MAX_STREAMS = 16_384
"""Maximum open streams; each takes about 40 kB."""
DEFAULT_MAX_CHECKPOINT_SERIES = 256
"""Series of checkpoints."""
DEFAULT_MAX_ROWS_PER_CALL = 1 << 15
"""Maximum rows or keys per call. A draw or update of this size blocks the event loop for about 10 ms."""
DEFAULT_MAX_REQUEST_BYTES = 8 << 20
"""Maximum bytes per request. gRPC assembles it on the event loop, at up to 1 ms per MiB; the client library sends at
most 4 MiB, or one row."""
DEFAULT_MAX_REPLY_BYTES = 512 << 20
"""Bytes of one reply."""
