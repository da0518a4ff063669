"""Shortcuts that bypass gRPC if client and server share a host: mapped files for rows, and a local socket for calls.

The server tells clients the directory and the socket of a table. A client that can read the nonce in that directory is
on the same host, and may use both.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from replay_proto.layout import NONCE_BYTES, NONCE_FILE

from replay_client._rows.mapped_rows import MappedRows
from replay_client._transport.frame_stream import FrameStream
from replay_client._transport.local_calls import FrameMethod, LocalAddress, LocalCalls
from replay_client.results.description import TableDescription

_ORDERED_LOADS: Final = ("x86_64", "AMD64")
"""Architectures (named as in `platform.machine`) with the memory order that the check of copied rows needs."""


@dataclass(frozen=True)
class DataPath:
    """Shortcuts to one table. A shortcut that is None is unavailable, so gRPC is used instead."""

    rows: MappedRows | None = None
    """Copies the rows of batches from the table's files; None: replies contain the rows."""
    calls: LocalCalls | None = None
    """Makes the calls of learners and writers over the local socket; None: they use gRPC."""

    @classmethod
    def on_same_host(cls, table: TableDescription, authorization: Callable[[], str] = str) -> DataPath:
        """Find the shortcuts, if the server offers them and this process can read the table's directory."""
        try:
            nonce = (Path(table.directory) / NONCE_FILE).read_bytes() if table.directory else b""
            if len(nonce) != NONCE_BYTES:
                return cls()
            rows = MappedRows(table, nonce) if platform.machine() in _ORDERED_LOADS else None
        except OSError:
            return cls()
        return cls(rows, LocalCalls(LocalAddress(table, nonce, authorization)) if table.socket else None)

    def open_stream(self, method: FrameMethod) -> FrameStream | None:
        """Open a stream that bypasses gRPC, if possible."""
        return None if self.calls is None else self.calls.open_stream(method)
