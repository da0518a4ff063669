"""Configurable limits on requests, and checks that refuse requests beyond them.

Other modules check other limits: `rpc.handlers.gathering` checks the bytes of a reply, `table` the rows of an insert,
and `waiting` the waiting calls.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from replay_proto.access.serving import DEFAULT_MAX_CONNECTIONS
from replay_proto.layout import MOST_ROWS_AT_ONCE

from replay_server import errors

if TYPE_CHECKING:  # settings import this module before the kernels are loaded
    from replay_proto.access.tokens import TokenEntry

    from replay_server.storage.table_config import TableConfig

PLAIN_BYTES: Final = 1 << 20
"""Maximum bytes of a request without rows, keys and priorities, as documented in the protocol."""
_BYTES_PER_ROW: Final = 16
"""Bytes of a key and a priority."""

_OTHER_FILES: Final = 6
"""Files of a table other than its columns: links, header, priorities, writers' records, checksums and sync points."""
_FILES_OF_MUTABLE: Final = 2
"""More files with mutable columns: versions, and checksums of places."""
_FILES_OF_QUEUE: Final = 1
"""One more in a queue: recent draws."""
_TABLES_SHARE: Final = 0.2
"""Fraction of the file descriptors that tables may use; connections may use three quarters."""
_DESCRIPTORS_SETTING: Final = "open-file limit of the server's process, a fifth of which tables may use"

_REQUEST_SETTING: Final = "max_request_mb of the server"

HEAD_BYTES = 1 << 16
"""Upper bound on the bytes of a message that are independent of its number of rows: some numbers and a table's name."""
ABOUT_A_ROW_BYTES = 32
"""Bytes of the key, priority, stream and episode of a row in a reply. In replies to draws, rows need less."""
ABOUT_A_BATCH_BYTES = 128
"""Bytes of the numbers that describe a batch."""


@dataclass(frozen=True)
class Bounds:
    """Limits on requests and callers, as described in `ServerSettings`. None: only the file system sets a limit."""

    max_request_bytes: int = 8 << 20
    """Maximum bytes of a request. While it receives a request, gRPC blocks the event loop for up to 1 ms per MiB. Our
    client sends at most 4 MiB at once, unless a single row is larger."""
    max_reply_bytes: int = 512 << 20
    max_rows_per_call: int = 1 << 15
    """Maximum rows of a draw, read or update. This many block the event loop for about 10 ms."""
    max_waiting_calls: int = 8_192
    max_waiting_bytes: int = 1 << 30
    max_wait_s: float = math.inf
    max_outgoing_bytes: int = 2 << 30
    """Maximum bytes of replies in flight. One caller may use half: 35 batches of 256 Atari transitions."""
    caller_share: float = 0.5
    """Fraction of each budget that one caller may use, so that no caller can exhaust it. Half suffices even for many
    clients that count as one caller."""
    max_connections: int = DEFAULT_MAX_CONNECTIONS
    max_streams: int = 16_384
    """Maximum open streams. Each takes about 40 kB."""
    max_streams_per_connection: int = 96
    max_local_connections: int = 1024
    max_tables: int = 1024
    max_columns: int = 512
    max_table_bytes: int | None = None
    max_bytes: int | None = None
    max_checkpoint_bytes: int | None = None
    max_checkpoint_series: int = 256

    @property
    def max_rows_bytes(self) -> int:
        """Maximum bytes of a reply's rows, including their metadata."""
        return self.max_reply_bytes - HEAD_BYTES

    def check_message(self, size: int) -> None:
        """Refuse a request that is too long. Like all checks here, this raises TOO_LARGE."""
        _check("bytes of a request", self.max_request_bytes, size, _REQUEST_SETTING)

    def longest(self, *, has_rows: bool) -> tuple[int, str]:
        """Return the maximum bytes of a request, with or without rows, and the setting that determines this maximum."""
        head_bytes = PLAIN_BYTES + _BYTES_PER_ROW * self.max_rows_per_call
        if has_rows or head_bytes >= self.max_request_bytes:
            return self.max_request_bytes, _REQUEST_SETTING
        return head_bytes, "max_rows_per_call of the server"

    def check_head(self, size: int, plain: int, *, is_insert: bool) -> None:
        """Refuse a request that is too long even without its rows: ``size`` bytes, of which ``plain`` are no arrays.

        Inserts have a limit of their own on ``size``.
        """
        _check("bytes of a message beside its rows, keys and priorities", PLAIN_BYTES, plain, "not a setting")
        most, setting = self.longest(has_rows=False)
        if is_insert:
            most, setting = PLAIN_BYTES + _BYTES_PER_ROW * MOST_ROWS_AT_ONCE, "not a setting"
        _check("bytes of a message without its rows", most, size, setting)

    def check_local_connections(self, connections: int) -> None:
        """Refuse too many connections to the local socket."""
        setting = "max_local_connections of the server"
        _check("connections to the local socket", self.max_local_connections, connections, setting)

    def check_columns(self, columns: int) -> None:
        """Refuse more columns than a table may have."""
        _check("columns of a table", self.max_columns, columns, "max_columns of the server")

    def check_rows(self, rows: int) -> None:
        """Refuse too many rows or keys in a call."""
        _check("rows of one call", self.max_rows_per_call, rows, "max_rows_per_call of the server")

    def check_table(self, config: TableConfig, size: int, others: Sequence[int]) -> None:
        """Refuse a table that exceeds a limit. ``size`` and ``others`` are bytes of tables when full."""
        _check("tables", self.max_tables, len(others) + 1, "max_tables of the server")
        self.check_columns(len(config.schema))
        most, setting = min(  # a larger row could never be inserted or drawn
            (self.max_request_bytes - HEAD_BYTES, _REQUEST_SETTING),
            (self.max_rows_bytes - ABOUT_A_ROW_BYTES - ABOUT_A_BATCH_BYTES, "max_reply_mb of the server"),
        )
        _check("bytes of a row", most, config.schema.row_bytes, setting)
        _check("bytes of a full table", self.max_table_bytes, size, "max_table_bytes of the server")
        if self.max_bytes is not None:
            total = size + sum(others)
            _check("bytes of all tables when full", self.max_bytes, total, "max_bytes of the server")

    def check_checkpoint(self, series: Collection[str], size: int) -> None:
        """Refuse a checkpoint with which there would be too many series, or too many bytes in all checkpoints."""
        _check("series of checkpoints", self.max_checkpoint_series, len(series), "max_checkpoint_series of the server")
        _check("bytes of all checkpoints", self.max_checkpoint_bytes, size, "max_checkpoint_bytes of the server")


def check_quota(creator: TokenEntry, size: int, others: Sequence[int]) -> None:
    """Refuse a table that exceeds its creator's quota; ``others`` are the bytes of the creator's other tables."""
    of = f"of the token {creator.name!r}"
    _check(f"tables {of}", creator.max_tables, len(others) + 1, f"max_tables {of}")
    _check(f"bytes of all tables when full, {of}", creator.max_bytes, size + sum(others), f"max_bytes {of}")


def descriptors_of(config: TableConfig) -> int:
    """Return the number of file descriptors of a table: two per file."""
    of_kind = (_FILES_OF_MUTABLE if config.schema.mutable else 0) + (_FILES_OF_QUEUE if config.is_queue else 0)
    return 2 * (len(config.schema) + _OTHER_FILES + of_kind)


def check_descriptors(config: TableConfig, others: Sequence[TableConfig]) -> None:
    """Refuse a table if the files of all tables would exceed the tables' share of the file descriptors."""
    most = int(_TABLES_SHARE * resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    total = sum(map(descriptors_of, others), descriptors_of(config))
    _check("file descriptors of all tables", most, total, _DESCRIPTORS_SETTING)


def no_descriptors(config: TableConfig) -> errors.RequestError:
    """Return the refusal of a table for which no file descriptors are left."""
    return errors.too_large("file descriptors left", 0, descriptors_of(config), _DESCRIPTORS_SETTING)


def _check(bound: str, most: int | None, got: int, setting: str) -> None:
    if most is not None and got > most:
        raise errors.too_large(bound, most, got, setting)
