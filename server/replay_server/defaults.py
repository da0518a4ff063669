"""What holds unless a setting or a request says otherwise."""

DEFAULT_BACKEND = "sum_tree"
"""Backend of a table."""
DEFAULT_SYNC_EVERY_S = 1.0
"""Seconds of inserts that a loss of power may take, with durability power."""
DEFAULT_MAX_WAITING = 16_384
"""Calls that wait at once."""
DEFAULT_MAX_WAITING_BYTES = 1 << 30
"""Bytes of the rows of inserts that wait at once."""
DEFAULT_CALLER_SHARE = 0.5
"""Part of what all callers share that one of them may hold: one alone cannot use it up, and a fleet with one token, or
on one machine, has plenty."""
DEFAULT_MAX_OUTGOING_BYTES = 2 << 30
"""Bytes of replies that are built or on their way: half of it are 35 batches of 256 Atari transitions."""
DEFAULT_MAX_STREAMS = 16_384
"""Streams open at once: each takes some 40 kB."""
DEFAULT_MAX_CHECKPOINT_SERIES = 256
"""Series of checkpoints."""
DEFAULT_MAX_ROWS_PER_CALL = 1 << 15
"""Rows or keys of one call. A draw or an update of so many takes the event loop about 10 ms."""
DEFAULT_MAX_REQUEST_BYTES = 8 << 20
"""Bytes of one request. gRPC assembles it on the event loop, at up to 1 ms per MiB; the client library sends 4 MiB at
once, or one row."""
DEFAULT_MAX_REPLY_BYTES = 512 << 20
"""Bytes of one reply."""
